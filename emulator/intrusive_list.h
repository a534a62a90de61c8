// A doubly linked list through a node that its elements carry: FIFO queues of QPs and CQs without allocation.
//
// An element is in at most one list per node, and leaves it when the node is destroyed. Not a container: it
// owns nothing. Thread rule: one owner.
#pragma once

namespace roci::emulator {

class ListNode {
 public:
  ListNode() = default;
  ListNode(const ListNode&) = delete;
  ListNode& operator=(const ListNode&) = delete;
  ~ListNode() { unlink(); }

  [[nodiscard]] bool is_linked() const { return next_ != this; }
  [[nodiscard]] ListNode* next() const { return next_; }
  void unlink() {
    next_->previous_ = previous_;
    previous_->next_ = next_;
    next_ = previous_ = this;
  }

 protected:
  void link_before(ListNode& node) {
    node.previous_ = previous_;
    node.next_ = this;
    previous_->next_ = &node;
    previous_ = &node;
  }
  ListNode* next_ = this;
  ListNode* previous_ = this;
};

// `Node` derives from ListNode and says whose it is by `Owner& owner`.
template <class Owner>
struct OwnedNode : ListNode {
  explicit OwnedNode(Owner& of) : owner(of) {}
  Owner& owner;
};

template <class Owner>
class IntrusiveList : private ListNode {
 public:
  using Node = OwnedNode<Owner>;

  [[nodiscard]] bool is_empty() const { return !is_linked(); }
  [[nodiscard]] Owner& front() const { return static_cast<Node*>(next_)->owner; }
  // No effect if it is in a list already.
  void push_back(Node& node) {
    if (!node.is_linked()) link_before(node);
  }
  // From the front to the back, which serves in turn.
  void rotate(Node& node) {
    node.unlink();
    link_before(node);
  }
  // Calls `visit(owner)` for each; it may unlink the one it is given, and no other.
  template <class Visit>
  void for_each(Visit visit) {
    for (ListNode* node = next_; node != this;) {
      ListNode* const after = node->next();
      visit(static_cast<Node*>(node)->owner);
      node = after;
    }
  }
};

}  // namespace roci::emulator
