// NCCL's place in torch.distributed, over Gloo and host memory.
//
// What a rank hands over is sent as it is then; where it changes before `wait`, this is counted. What arrives is seen
// after `wait`, and until then its place is poisoned. Tags mean nothing, order between two ranks does. Who waits for a
// rank that is gone waits for ever, as on a device: nothing but `abort` ends that, on the rank that calls it. Refused,
// as NCCL and torch's class around it do: tensors of the CPU, of another device than the current one, strided ones; two
// ranks on one device; anything after `abort`. Each call is counted, and each that begins while another communicator
// has something under way: NCCL promises nothing for those.
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <vector>

#include "ledger.hpp"

PYBIND11_DECLARE_HOLDER_TYPE(T, c10::intrusive_ptr<T>, true)

namespace pretend {
namespace {

using at::Tensor;
using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

Tensor room_for(const Tensor& tensor) { return at::empty(tensor.sizes(), tensor.options().device(at::kCPU)); }

Tensor as_it_is(const Tensor& tensor) {
  Tensor copy = room_for(tensor);
  if (tensor.numel()) std::memcpy(copy.data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  return copy;
}

// What is sent, and the copy that is really sent; what arrives, and where it arrives first.
struct Moved {
  Tensor on_device, staged;
};

bool same_bytes(const Tensor& left, const Tensor& right) {
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// Of one communicator, for all that it has begun.
struct State {
  int rank;
  std::atomic<bool> is_aborted{false};
  std::atomic<int> num_under_way{0};

  void check() const {
    TORCH_CHECK_WITH(DistBackendError, !is_aborted, "NCCL communicator was aborted on rank ", rank);
  }
};
std::atomic<int> all_under_way{0};  // of all communicators of this process

// Gloo's end of an exchange, waited for in a thread that can be left alone. Where Gloo says that a connection has
// ended, a device would go on waiting.
class Waiter {
 public:
  explicit Waiter(Works works) : works_(std::move(works)) {}
  static void wait(Works works, const State& state) {
    if (works.empty()) return;
    auto waiter = std::make_shared<Waiter>(std::move(works));
    std::thread([waiter] { waiter->run(); }).detach();
    while (!waiter->has_arrived_) {
      state.check();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  void run() {
    try {
      for (auto& work : works_) work->wait(kNoTimeout);
      works_.clear();
      has_arrived_ = true;
    } catch (const std::exception&) {  // another rank is gone
    }
  }
  Works works_;
  std::atomic<bool> has_arrived_{false};
};

class Exchange final : public c10d::Work {
 public:
  explicit Exchange(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~Exchange() override { end(); }
  void begin() {
    if (all_under_way > state_->num_under_way) count("nccl: two communicators under way");
    ++all_under_way, ++state_->num_under_way;
    is_under_way_ = true;
  }
  void send(Moved moved) { sent_.push_back(std::move(moved)); }
  // What is sent from the same place stays readable, all around it is poisoned.
  void receive(Moved moved) {
    Tensor& on_device = moved.on_device;
    if (on_device.numel()) {
      auto* start = static_cast<char*>(on_device.data_ptr());
      std::memset(start, 0xFF, on_device.nbytes());
      for (const auto& [sent, staged] : sent_) {
        auto* place = static_cast<char*>(sent.data_ptr());
        if (sent.numel() && place >= start && place + sent.nbytes() <= start + on_device.nbytes())
          std::memcpy(place, staged.const_data_ptr(), sent.nbytes());
      }
    }
    poisoned_.push_back(as_it_is(on_device));
    received_.push_back(std::move(moved));
  }
  void add(c10::intrusive_ptr<c10d::Work> work) { works_.push_back(std::move(work)); }
  void be_alone() { is_alone_ = true; }
  void take_over(Exchange& other) {
    is_alone_ = is_alone_ || other.is_alone_;
    works_.insert(works_.end(), other.works_.begin(), other.works_.end());
    sent_.insert(sent_.end(), other.sent_.begin(), other.sent_.end());
    received_.insert(received_.end(), other.received_.begin(), other.received_.end());
    poisoned_.insert(poisoned_.end(), other.poisoned_.begin(), other.poisoned_.end());
  }

  bool wait(std::chrono::milliseconds) override {
    if (has_ended_) return true;
    has_ended_ = true;
    for (const auto& [device, staged] : sent_)  // no error yet: whoever knows throws away what the others got
      if (!same_bytes(staged, device)) count("sent data changed before wait");
    for (size_t i = 0; i < received_.size(); ++i)
      TORCH_CHECK(same_bytes(received_[i].on_device, poisoned_[i]),
                  "pretended NCCL: what is being received was written to before wait()");
    while (is_alone_) state_->check(), std::this_thread::sleep_for(std::chrono::microseconds(20));
    Waiter::wait(std::move(works_), *state_);
    for (const auto& [device, staged] : received_)
      if (device.numel()) std::memcpy(device.data_ptr(), staged.const_data_ptr(), staged.nbytes());
    sent_.clear(), received_.clear(), poisoned_.clear(), works_.clear();
    end();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  // DDP asks for it. Nothing comes later here: it waits, as a stream would before the next kernel.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::vector<Tensor> arrived;
    for (const auto& each : received_) arrived.push_back(each.on_device);
    wait(kNoTimeout);
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(arrived));
    return future;
  }
  bool isCompleted() override { return has_ended_; }
  bool isSuccess() const override { return true; }

 private:
  void end() {
    if (is_under_way_) --all_under_way, --state_->num_under_way;
    is_under_way_ = false;
  }

  std::shared_ptr<State> state_;
  Works works_;
  std::vector<Moved> sent_, received_;
  std::vector<Tensor> poisoned_;  // what a place of `received_` shows until somebody waits
  bool has_ended_ = false, is_under_way_ = false, is_alone_ = false;
};

class Nccl final : public c10d::Backend {
 public:
  Nccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(rank, size), store_(std::move(store)), gloo_(std::move(gloo)) {
    state_->rank = rank;
  }
  ~Nccl() override {
    if (state_->is_aborted) (void)gloo_.release();  // its end would wait for what was left alone
  }

  const std::string getBackendName() const override { return "nccl"; }
  bool supportsCoalescing() const override { return true; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return num_collectives_; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }

  void abort() override { state_->is_aborted = true; }

  void startCoalescing() override {
    together_ = new_exchange();
    is_together_ = true;
  }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    is_together_ = false;
    together_->begin();
    return std::move(together_);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<Tensor>& tensors, const c10d::BroadcastOptions& how) override {
    check_all("broadcast", {only(tensors)});
    auto exchange = new_exchange();
    std::vector<Tensor> staged{as_it_is(tensors[0])};
    (getRank() == how.rootRank) ? exchange->send({tensors[0], staged[0]}) : exchange->receive({tensors[0], staged[0]});
    add(*exchange, [&] { return gloo_->broadcast(staged, how); });
    return begun(exchange);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<Tensor>& tensors, const c10d::AllreduceOptions& how) override {
    check_all("allreduce", {only(tensors)});
    auto exchange = new_exchange();
    std::vector<Tensor> staged{as_it_is(tensors[0])};
    exchange->send({tensors[0], staged[0].clone()});
    exchange->receive({tensors[0], staged[0]});
    add(*exchange, [&] { return gloo_->allreduce(staged, how); });
    return begun(exchange);
  }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<Tensor>>& outputs, std::vector<Tensor>& inputs,
                                           const c10d::AllgatherOptions& how) override {
    std::vector<Tensor> all(outputs.at(0));
    all.push_back(only(inputs));
    check_all("allgather", all);
    auto exchange = new_exchange();
    std::vector<Tensor> sent{as_it_is(inputs[0])};
    std::vector<std::vector<Tensor>> staged(1);
    exchange->send({inputs[0], sent[0]});
    bool are_alike = true;
    for (const Tensor& output : outputs[0]) {
      staged[0].push_back(room_for(output));
      exchange->receive({output, staged[0].back()});
      are_alike = are_alike && output.sizes() == outputs[0][0].sizes();
    }
    if (are_alike) {
      add(*exchange, [&] { return gloo_->allgather(staged, sent, how); });
      return begun(exchange);
    }
    for (int rank = 0; rank < getSize(); ++rank) {  // as torch does with NCCL
      std::vector<Tensor> part{staged[0][rank]};
      if (rank == getRank()) part[0].copy_(sent[0]);
      c10d::BroadcastOptions from;
      from.rootRank = rank;
      if (part[0].numel()) add(*exchange, [&] { return gloo_->broadcast(part, from); });
    }
    return begun(exchange);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(Tensor& output, Tensor& input,
                                                 const c10d::AllgatherOptions& how) override {
    return exchanged("all_gather_into_tensor", output, input,
                     [&](Tensor& to, Tensor& from) { return gloo_->_allgather_base(to, from, how); });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(Tensor& output, Tensor& input,
                                                      const c10d::ReduceScatterOptions& how) override {
    return exchanged("reduce_scatter_tensor", output, input,
                     [&](Tensor& to, Tensor& from) { return gloo_->_reduce_scatter_base(to, from, how); });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& to_sizes,
                                               std::vector<int64_t>& from_sizes,
                                               const c10d::AllToAllOptions& how) override {
    return exchanged("all_to_all", output, input, [&](Tensor& to, Tensor& from) {
      return gloo_->alltoall_base(to, from, to_sizes, from_sizes, how);
    });
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& how) override {
    Waiter::wait({gloo_->barrier(how)}, *state_);
    return new_exchange();
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<Tensor>& tensors, int to, int) override {
    count("nccl: send");
    check({only(tensors)}, to);
    auto exchange = new_exchange();
    std::vector<Tensor> staged{as_it_is(tensors[0])};
    exchange->send({tensors[0], staged[0]});
    add(*exchange, [&] { return gloo_->send(staged, to, num_sent_[to]++); });
    return begun(exchange);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<Tensor>& tensors, int from, int) override {
    count("nccl: recv");
    check({only(tensors)}, from);
    auto exchange = new_exchange();
    std::vector<Tensor> staged{room_for(tensors[0])};
    exchange->receive({tensors[0], staged[0]});
    add(*exchange, [&] { return gloo_->recv(staged, from, num_received_[from]++); });
    return begun(exchange);
  }

 private:
  template <typename Begin>
  c10::intrusive_ptr<c10d::Work> exchanged(const char* call, Tensor& output, Tensor& input, Begin begin) {
    check_all(call, {output, input});
    auto exchange = new_exchange();
    Tensor from = as_it_is(input), to = room_for(output);
    exchange->send({input, from});
    exchange->receive({output, to});
    Tensor to_flat = to.view(-1), from_flat = from.view(-1);
    add(*exchange, [&] { return begin(to_flat, from_flat); });
    return begun(exchange);
  }
  c10::intrusive_ptr<Exchange> new_exchange() { return c10::make_intrusive<Exchange>(state_); }
  c10::intrusive_ptr<c10d::Work> begun(c10::intrusive_ptr<Exchange> exchange) {
    if (!is_together_) {
      exchange->begin();
      return exchange;
    }
    together_->take_over(*exchange);
    return new_exchange();
  }

  template <typename Begin>
  static void add(Exchange& exchange, Begin begin) {
    try {
      exchange.add(begin());
    } catch (const std::exception&) {  // Gloo says that another rank is gone; NCCL's kernel waits in vain
      exchange.be_alone();
    }
  }

  static const Tensor& only(const std::vector<Tensor>& tensors) {
    TORCH_CHECK(tensors.size() == 1, "pretended NCCL: one tensor for each call");
    return tensors[0];
  }
  void check_all(const char* call, const std::vector<Tensor>& tensors) {
    count(std::string("nccl: ") + call);
    ++num_collectives_;
    check(tensors, getRank());
    for (int peer = 0; peer < getSize(); ++peer) check_place(peer, tensors[0].device());
  }
  void check(const std::vector<Tensor>& tensors, int peer) {
    state_->check();
    const auto current = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice();
    for (const Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_cuda(), "No backend type associated with device type ", tensor.device().type());
      TORCH_CHECK(tensor.device() == current, "pretended NCCL: a tensor on ", tensor.device(),
                  ", but the current device is ", current);
      TORCH_CHECK_VALUE(tensor.is_contiguous(), "Tensors must be contiguous");
    }
    tell_place(current);
    check_place(peer, current);
  }

  // Communicators are made at the first call, by those who take part in it.
  void tell_place(c10::Device device) {
    if (!known_.insert(getRank()).second) return;
    const std::string place = place_of(device);
    store_->set(key(getRank()), std::vector<uint8_t>(place.begin(), place.end()));
  }
  void check_place(int peer, c10::Device device) {
    if (!known_.insert(peer).second) return;
    while (!store_->check({key(peer)})) {
      state_->check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto told = store_->get(key(peer));
    TORCH_CHECK_WITH(DistBackendError, std::string(told.begin(), told.end()) != place_of(device),
                     "NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)\nDuplicate GPU detected : rank ",
                     getRank(), " and rank ", peer, " both on ", device);
  }
  static std::string key(int rank) { return "place of " + std::to_string(rank); }
  static std::string place_of(c10::Device device) {
    const char* node = std::getenv("GROUP_RANK");
    return (node ? node : "0") + device.str();
  }

  std::shared_ptr<State> state_ = std::make_shared<State>();
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::intrusive_ptr<Exchange> together_;
  bool is_together_ = false;
  uint64_t num_collectives_ = 0;
  std::set<int> known_;
  std::map<int, int> num_sent_, num_received_;
};

c10::intrusive_ptr<c10d::Backend> over(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                       c10::intrusive_ptr<c10d::Backend> gloo) {
  return c10::make_intrusive<Nccl>(std::move(store), rank, size, std::move(gloo));
}

class NoTimer final : public c10d::Timer {  // DDP wants one for the device
 public:
  explicit NoTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

}  // namespace
}  // namespace pretend

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, ::pretend::NoTimer)
}  // namespace c10d

PYBIND11_MODULE(pretended_nccl, module) { module.def("over", &pretend::over); }
