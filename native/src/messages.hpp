// Sending and receiving between two ranks of a group: streams of bytes through one ring for each direction.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "control.hpp"
#include "operation.hpp"

namespace samebits {

// What a call says about its message besides the numbers.
struct About {
  std::uint64_t shape = 0;     // shape.hpp
  const Site* site = nullptr;  // who calls, if anybody knows
};

struct Message : Pending {
  bool incoming = false;
  std::size_t peer = 0;  // for a receive from anybody: the world size until one has come
  std::uint64_t tag = 0;
  Dtype dtype = Dtype::uint8;
  std::uint64_t bytes = 0;
  std::byte* data = nullptr;
  About about;
  std::uint64_t moved = 0;
  bool has_header = false;  // the header went into the ring
};

class Messages {
 public:
  Messages(std::byte* rings, const Layout& layout, std::size_t rank);

  void send(std::shared_ptr<Message> message);
  void receive(std::shared_ptr<Message> message);
  // Move what can be moved; whether anything was. Throws GroupError when a message does not fit.
  bool progress();
  bool idle() const { return num_pending_ == 0; }
  // Whether something has changed that `progress` could use, for a message or for any.
  bool could_progress() const;
  // "a message of 10 float32 with tag 5 from rank 1"
  std::string text_of(const Message& message) const;
  // Whoever waits for a message gets this error.
  void fail_all(const std::exception_ptr& error);
  // Called with a peer after its ring was written or read.
  std::function<void(std::size_t)> on_change;
  // The user's name for a rank, for errors.
  std::function<std::string(std::size_t)> name_of;

 private:
  struct Envelope {
    std::uint64_t bytes, tag, shape;
    std::uint32_t dtype, magic;
    char where[72];  // the line that sends
  };
  // A message that is being read out of a ring.
  struct Incoming {
    bool open = false;
    Envelope envelope{};
    std::uint64_t moved = 0;
    std::shared_ptr<Message> target;  // who asked for it; else it goes into `aside`
    std::shared_ptr<std::vector<std::byte>> aside;
  };
  struct Aside {
    Envelope envelope;
    std::shared_ptr<std::vector<std::byte>> bytes;
  };

  // The blocks of a ring that nothing lies in, the one that was read last on top. Filled when the first is taken.
  struct FreeBlocks {
    bool is_filled = false;
    std::vector<std::uint16_t> places;
    std::uint64_t returned = 0;  // blocks that were read, since the beginning
  };

  Ring& ring(std::size_t from, std::size_t to) const;
  std::byte* bytes_of(Ring& ring) const { return reinterpret_cast<std::byte*>(&ring) + sizeof(Ring); }
  std::uint64_t room_in(const Ring& ring) const;
  std::byte* address(Ring& ring, std::uint64_t position) const;
  void take_block(std::size_t peer, std::uint64_t number);
  std::uint64_t put(std::size_t peer, const void* data, std::uint64_t bytes);
  std::uint64_t take(std::size_t peer, void* data, std::uint64_t bytes, std::uint64_t whole);
  bool progress_outgoing(std::size_t peer);
  bool progress_incoming(std::size_t peer);
  bool wants(std::size_t peer) const;
  std::shared_ptr<Message> matching(std::size_t peer, const Envelope& envelope);
  bool serve_from_aside(Message& message);
  void accept(Message& message, std::size_t peer, const Envelope& envelope);

  std::byte* rings_;
  Layout layout_;
  std::size_t rank_;
  std::size_t num_pending_ = 0;
  // Lists: an empty one takes no memory, and a group may have many ranks that never send each other anything.
  std::vector<std::list<std::shared_ptr<Message>>> outgoing_;
  std::vector<FreeBlocks> free_blocks_;
  std::vector<Incoming> incoming_;
  std::vector<std::list<Aside>> aside_;
  std::deque<std::shared_ptr<Message>> posted_;
};

}  // namespace samebits
