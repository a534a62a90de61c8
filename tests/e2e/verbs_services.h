// What verbs_check knows beside RC and its errors; each ends the program with a line of text if something is
// wrong.
#pragma once

namespace verbs_check {

void check_unreliable_connection();  // data, and what is lost without a word
// UD by GID 1, and by the link-local one: data, GRH, immediate, an answer made from a completion.
void check_datagrams(bool link_local_too);
void check_multicast();                     // each datagram once at each other QP of the group
void receive_multicast(const char* group);  // on one host, says "attached", and
void send_multicast(const char* group);     // on another
void check_lonely(const char* gid);         // datagrams to a peer that does not exist complete
void check_shared_receives();               // one SRQ for two QPs, and its limit event
void check_windows();                       // memory windows of type 1 and 2, bound, used, invalidated
void check_atomic_write();                  // ibv_wr_atomic_write
void check_resize();                        // of a CQ, while completions arrive

}  // namespace verbs_check
