// An MPI program that validates every byte it moves: point to point from 1 byte to 1 MiB in both protocols of
// the library (eager, rendezvous), reductions, all-to-all, and one-sided access. Built by the case that runs
// it.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kLongest = 1 << 20, kBlock = 4096, kTag = 7 };

static int rank, ranks;

static void require(int condition, const char* what, long detail) {
  if (condition) return;
  fprintf(stderr, "mpi_check: rank %d: wrong %s (%ld)\n", rank, what, detail);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// What byte `at` of a message from one rank to another must be; no two messages look alike.
static uint8_t expected(int from, int to, size_t length, size_t at) {
  uint64_t x = ((uint64_t)from << 48) ^ ((uint64_t)to << 40) ^ ((uint64_t)length << 16) ^ at;
  x *= 0x9E3779B97F4A7C15u;
  return (uint8_t)(x >> 56);
}

static void fill(uint8_t* bytes, int from, int to, size_t length) {
  for (size_t at = 0; at < length; ++at)
    bytes[at] = expected(from, to, length, at);
}

static void verify(const uint8_t* bytes, int from, int to, size_t length, const char* what) {
  for (size_t at = 0; at < length; ++at)
    require(bytes[at] == expected(from, to, length, at), what, (long)at);
}

// Every rank sends to the next and receives from the one before; the byte behind the message stays as it is.
// Returns how many bytes a rank has sent.
static long long rings(void) {
  long long sent = 0;
  uint8_t* out = malloc(kLongest + 1);
  uint8_t* in = malloc(kLongest + 1);
  const int next = (rank + 1) % ranks;
  const int before = (rank + ranks - 1) % ranks;
  for (size_t power = 1; power <= kLongest; power *= 2) {
    for (size_t length = power - (power > 1); length <= power + 1 && length <= kLongest; ++length) {
      fill(out, rank, next, length);
      sent += (long long)length;
      memset(in, 0xEE, kLongest + 1);
      MPI_Status status;
      int count = 0;
      MPI_Sendrecv(out, (int)length, MPI_BYTE, next, kTag, in, kLongest, MPI_BYTE, before, kTag,
                   MPI_COMM_WORLD, &status);
      MPI_Get_count(&status, MPI_BYTE, &count);
      require((size_t)count == length, "length of a message", count);
      verify(in, before, rank, length, "data of a message");
      require(in[length] == 0xEE, "byte behind a message", (long)length);
    }
  }
  free(out);
  free(in);
  return sent;
}

static void reductions(void) {
  enum { kNumbers = 10000 };
  static int64_t mine[kNumbers], all[kNumbers];
  for (int round = 0; round < 5; ++round) {
    for (int64_t i = 0; i < kNumbers; ++i)
      mine[i] = (rank + 1) * (i + round);
    MPI_Allreduce(mine, all, kNumbers, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int64_t i = 0; i < kNumbers; ++i)
      require(all[i] == (i + round) * ranks * (ranks + 1) / 2, "sum", (long)i);
  }
}

static void all_to_all(void) {
  uint8_t* out = malloc((size_t)ranks * kBlock);
  uint8_t* in = malloc((size_t)ranks * kBlock);
  for (int to = 0; to < ranks; ++to)
    fill(out + (size_t)to * kBlock, rank, to, kBlock);
  MPI_Alltoall(out, kBlock, MPI_BYTE, in, kBlock, MPI_BYTE, MPI_COMM_WORLD);
  for (int from = 0; from < ranks; ++from)
    verify(in + (size_t)from * kBlock, from, rank, kBlock, "data of an all-to-all");
  free(out);
  free(in);
}

// Puts and gets of a block, and a counter that everybody adds to.
static void one_sided(void) {
  enum { kAdds = 50 };
  uint8_t* memory = NULL;
  MPI_Win window;
  MPI_Win_allocate((MPI_Aint)(ranks + 1) * kBlock, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
  memset(memory, 0, (size_t)(ranks + 1) * kBlock);  // a block of each rank, then the counter
  MPI_Win_fence(0, window);
  uint8_t* block = malloc(kBlock);
  for (int to = 0; to < ranks; ++to) {
    fill(block, rank, to, kBlock);
    MPI_Win_lock(MPI_LOCK_SHARED, to, 0, window);
    MPI_Put(block, kBlock, MPI_BYTE, to, (MPI_Aint)rank * kBlock, kBlock, MPI_BYTE, window);
    MPI_Win_unlock(to, window);
  }
  MPI_Win_fence(0, window);
  for (int from = 0; from < ranks; ++from)
    verify(memory + (size_t)from * kBlock, from, rank, kBlock, "data of a put");
  MPI_Win_fence(0, window);
  for (int at = 0; at < ranks; ++at) {
    MPI_Win_lock(MPI_LOCK_SHARED, at, 0, window);
    MPI_Get(block, kBlock, MPI_BYTE, at, (MPI_Aint)rank * kBlock, kBlock, MPI_BYTE, window);
    MPI_Win_unlock(at, window);
    verify(block, rank, at, kBlock, "data of a get");
  }
  const int64_t one = 1;
  for (int i = 0; i < kAdds; ++i) {
    int64_t before = -1;
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, (MPI_Aint)ranks * kBlock, MPI_SUM, window);
    MPI_Win_unlock(0, window);
    require(before >= 0 && before < (int64_t)kAdds * ranks, "value before an addition", (long)before);
  }
  MPI_Win_fence(0, window);
  int64_t total = 0;
  memcpy(&total, memory + (size_t)ranks * kBlock, sizeof total);
  require(rank != 0 || total == (int64_t)kAdds * ranks, "total of additions", (long)total);
  free(block);
  MPI_Win_free(&window);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const long long sent = rings();
  reductions();
  all_to_all();
  one_sided();
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0)
    printf("mpi_check: %d ranks, %lld bytes around the ring, all as expected\n", ranks, ranks * sent);
  MPI_Finalize();
  return 0;
}
