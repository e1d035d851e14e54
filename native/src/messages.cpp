#include "messages.hpp"

#include <algorithm>
#include <cstring>

#include "errors.hpp"
#include "shape.hpp"

namespace samebits {
namespace {

constexpr std::uint32_t envelope_magic = 0x6d736732;

std::string amount(std::uint64_t shape, std::uint64_t bytes, Dtype dtype) {
  return text_of_shape(shape, bytes / size_of(dtype)) + " " + std::string(name_of(dtype));
}

std::string at(const std::string& where) { return where.empty() ? "" : " at " + where; }

}  // namespace

Messages::Messages(std::byte* rings, const Layout& layout, std::size_t rank)
    : rings_(rings),
      layout_(layout),
      rank_(rank),
      outgoing_(layout.world_size),
      free_blocks_(layout.world_size),
      incoming_(layout.world_size),
      aside_(layout.world_size) {}

Ring& Messages::ring(std::size_t from, std::size_t to) const {
  return *reinterpret_cast<Ring*>(rings_ + (from * layout_.world_size + to) * layout_.ring_stride());
}

// A block that is partly read cannot be written again.
std::uint64_t Messages::room_in(const Ring& ring) const {
  const std::uint64_t read = ring.read.load(std::memory_order_acquire) / layout_.block_bytes() * layout_.block_bytes();
  return layout_.ring_bytes - (ring.written.load(std::memory_order_relaxed) - read);
}

std::byte* Messages::address(Ring& ring, std::uint64_t position) const {
  const std::uint64_t block = layout_.block_bytes();
  return bytes_of(ring) + ring.places[position / block % layout_.num_blocks()] * block + position % block;
}

// There is room for it.
void Messages::take_block(std::size_t peer, std::uint64_t number) {
  Ring& out = ring(rank_, peer);
  FreeBlocks& free = free_blocks_[peer];
  if (!free.is_filled) {
    for (std::size_t place = layout_.num_blocks(); place-- > 0;)
      free.places.push_back(static_cast<std::uint16_t>(place));
    free.is_filled = true;
  }
  const std::uint64_t read = out.read.load(std::memory_order_acquire) / layout_.block_bytes();
  for (; free.returned < read; ++free.returned) free.places.push_back(out.places[free.returned % layout_.num_blocks()]);
  out.places[number % layout_.num_blocks()] = free.places.back();
  free.places.pop_back();
}

// Copies as much as there is room for, block by block, so that the reader copies one while the next is written.
std::uint64_t Messages::put(std::size_t peer, const void* data, std::uint64_t bytes) {
  Ring& out = ring(rank_, peer);
  std::uint64_t done = 0;
  while (done != bytes) {
    const std::uint64_t written = out.written.load(std::memory_order_relaxed);
    const std::uint64_t block = layout_.block_bytes(),
                        size = std::min({bytes - done, room_in(out), block - written % block});
    if (size == 0) break;
    if (written % block == 0) take_block(peer, written / block);
    std::memcpy(address(out, written), static_cast<const std::byte*>(data) + done, size);
    out.written.store(written + size, std::memory_order_release);
    done += size;
    if (done != bytes) on_change(peer);
  }
  return done;
}

std::uint64_t Messages::take(std::size_t peer, void* data, std::uint64_t bytes, std::uint64_t whole) {
  Ring& in = ring(peer, rank_);
  std::uint64_t done = 0;
  while (done != bytes) {
    const std::uint64_t read = in.read.load(std::memory_order_relaxed);
    const std::uint64_t there = in.written.load(std::memory_order_acquire) - read, block = layout_.block_bytes();
    const std::uint64_t size = std::min({bytes - done, there, block - read % block});
    if (size == 0) break;
    copy(static_cast<std::byte*>(data) + done, address(in, read), size, whole);
    in.read.store(read + size, std::memory_order_release);
    done += size;
    if (done != bytes) on_change(peer);
  }
  return done;
}

void Messages::send(std::shared_ptr<Message> message) {
  ++num_pending_;
  outgoing_[message->peer].push_back(std::move(message));
}

void Messages::receive(std::shared_ptr<Message> message) {
  if (serve_from_aside(*message)) return;
  ++num_pending_;
  posted_.push_back(std::move(message));
}

bool Messages::progress() {
  if (num_pending_ == 0) return false;
  bool moved = false;
  for (std::size_t peer = 0; peer < layout_.world_size; ++peer) {
    bool changed = progress_outgoing(peer);
    if (wants(peer)) changed = progress_incoming(peer) || changed;
    if (changed) on_change(peer);
    moved = moved || changed;
  }
  return moved;
}

bool Messages::could_progress() const {
  for (std::size_t peer = 0; peer < layout_.world_size; ++peer) {
    if (!outgoing_[peer].empty()) {
      const std::uint64_t needed =
          outgoing_[peer].front()->has_header ? 1 : sizeof(Envelope);  // a header goes as a whole
      if (room_in(ring(rank_, peer)) >= needed) return true;
    }
    if (wants(peer)) {
      const Ring& in = ring(peer, rank_);
      if (in.written.load(std::memory_order_acquire) != in.read.load(std::memory_order_relaxed)) return true;
    }
  }
  return false;
}

bool Messages::progress_outgoing(std::size_t peer) {
  auto& queue = outgoing_[peer];
  bool moved = false;
  while (!queue.empty()) {
    Message& message = *queue.front();
    if (!message.has_header) {
      if (room_in(ring(rank_, peer)) < sizeof(Envelope)) break;
      Envelope envelope{message.bytes,  message.tag, message.about.shape, static_cast<std::uint32_t>(message.dtype),
                        envelope_magic, {}};
      if (message.about.site != nullptr) write_text(envelope.where, sizeof(envelope.where), message.about.site->where);
      put(peer, &envelope, sizeof(envelope));
      message.has_header = moved = true;
    }
    const std::uint64_t size = put(peer, message.data + message.moved, message.bytes - message.moved);
    message.moved += size;
    moved = moved || size != 0;
    if (message.moved != message.bytes) break;
    message.finished = true;
    --num_pending_;
    queue.pop_front();
  }
  return moved;
}

// Rings are read only while somebody here waits for a message from there; else they stay full, which holds back the
// sender.
bool Messages::wants(std::size_t peer) const {
  return std::any_of(
             posted_.begin(), posted_.end(),
             [&](const auto& message) { return message->peer == peer || message->peer == layout_.world_size; }) ||
         (incoming_[peer].open && incoming_[peer].target);
}

bool Messages::progress_incoming(std::size_t peer) {
  Incoming& now = incoming_[peer];
  Ring& in = ring(peer, rank_);
  bool moved = false;
  while (now.open || wants(peer)) {
    if (!now.open) {
      const std::uint64_t there = in.written.load(std::memory_order_acquire) - in.read.load(std::memory_order_relaxed);
      if (there < sizeof(Envelope)) break;
      take(peer, &now.envelope, sizeof(Envelope), sizeof(Envelope));
      if (now.envelope.magic != envelope_magic)
        throw GroupError(Trouble::aborted, "the messages from rank " + name_of(peer) + " are damaged");
      now.moved = 0;
      now.target = matching(peer, now.envelope);
      now.aside = now.target ? nullptr : std::make_shared<std::vector<std::byte>>(now.envelope.bytes);
      now.open = moved = true;
    }
    std::byte* target = now.target ? now.target->data : now.aside->data();
    const std::uint64_t size = take(peer, target + now.moved, now.envelope.bytes - now.moved, now.envelope.bytes);
    now.moved += size;
    moved = moved || size != 0;
    if (now.moved != now.envelope.bytes) break;
    now.open = false;
    if (now.target) {
      now.target->finished = true;
      --num_pending_;
      now.target.reset();
    } else if (const auto asked = matching(peer, now.envelope)) {  // asked for while it was on its way
      if (asked->bytes != 0) std::memcpy(asked->data, now.aside->data(), asked->bytes);
      asked->finished = true;
      --num_pending_;
    } else {
      aside_[peer].push_back({now.envelope, std::move(now.aside)});
    }
  }
  return moved;
}

// `message` is the one that `envelope` is for.
void Messages::accept(Message& message, std::size_t peer, const Envelope& envelope) {
  message.peer = peer;
  const auto dtype = static_cast<Dtype>(envelope.dtype);
  // A row of numbers may stand for any shape of that size.
  const bool is_alike = message.about.shape == envelope.shape || message.about.shape == 0 || envelope.shape == 0;
  if (message.bytes == envelope.bytes && message.dtype == dtype && is_alike) return;
  const std::string mine = amount(message.about.shape, message.bytes, message.dtype);
  const std::string theirs = amount(envelope.shape, envelope.bytes, dtype);
  throw GroupError(Trouble::disagreement, "Rank " + name_of(peer) + " sends " + theirs + " with tag " +
                                              std::to_string(envelope.tag) + at(envelope.where) + ", but rank " +
                                              name_of(rank_) + " receives " + mine +
                                              (mine == theirs ? " in a different shape" : "") +
                                              at(message.about.site == nullptr ? "" : message.about.site->where) + ".");
}

std::shared_ptr<Message> Messages::matching(std::size_t peer, const Envelope& envelope) {
  const auto found = std::find_if(posted_.begin(), posted_.end(), [&](const auto& message) {
    return message->tag == envelope.tag && (message->peer == peer || message->peer == layout_.world_size);
  });
  if (found == posted_.end()) return nullptr;
  accept(**found, peer, envelope);
  std::shared_ptr<Message> message = *found;
  posted_.erase(found);
  return message;
}

// A message that came before anybody asked for it.
bool Messages::serve_from_aside(Message& message) {
  for (std::size_t peer = 0; peer < layout_.world_size; ++peer) {
    if (message.peer != peer && message.peer != layout_.world_size) continue;
    auto& waiting = aside_[peer];
    const auto found = std::find_if(waiting.begin(), waiting.end(),
                                    [&](const Aside& each) { return each.envelope.tag == message.tag; });
    if (found == waiting.end()) continue;
    accept(message, peer, found->envelope);
    if (message.bytes != 0) std::memcpy(message.data, found->bytes->data(), message.bytes);
    waiting.erase(found);
    message.finished = true;
    return true;
  }
  return false;
}

std::string Messages::text_of(const Message& message) const {
  const std::string who = message.peer == layout_.world_size ? "any rank" : "rank " + name_of(message.peer);
  return "a message of " + amount(message.about.shape, message.bytes, message.dtype) + " with tag " +
         std::to_string(message.tag) + (message.incoming ? " from " : " to ") + who;
}

void Messages::fail_all(const std::exception_ptr& error) {
  for (auto& queue : outgoing_) {
    for (const auto& message : queue) message->error = error;
    queue.clear();
  }
  for (const auto& message : posted_) message->error = error;
  posted_.clear();
  for (Incoming& incoming : incoming_) {
    if (incoming.target) incoming.target->error = error;
    incoming = {};
  }
  num_pending_ = 0;
}

}  // namespace samebits
