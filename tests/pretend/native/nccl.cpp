// NCCL's place in torch.distributed, over Gloo and host memory.
//
// What a rank hands over is sent as it is then; where it changes before `wait`, this is counted. What arrives is seen
// after `wait`, and until then its place is poisoned. Tags mean nothing, order between two ranks does. Refused, as NCCL
// and torch's class around it do: tensors of the CPU, of another device than the current one, strided ones; two ranks
// on one device.
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
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

bool same_bytes(const Tensor& left, const void* right) {
  return std::memcmp(left.const_data_ptr(), right, left.nbytes()) == 0;
}

// Gloo notices the end of another rank. A kernel of NCCL between two GPUs waits in vain.
bool is_deaf() { return std::getenv("PRETENDED_NCCL_IS_DEAF") != nullptr; }

[[noreturn]] void hear_nothing() {
  for (;;) pause();
}

class Exchange final : public c10d::Work {
 public:
  void send(Moved moved) { sent_.push_back(std::move(moved)); }
  void receive(Moved moved) {
    for (const auto& each : sent_)
      in_place_ = in_place_ || each.on_device.storage().is_alias_of(moved.on_device.storage());
    if (!in_place_ && moved.on_device.numel()) {
      std::memset(moved.on_device.data_ptr(), 0xFF, moved.on_device.nbytes());
      poison_ = std::max(poison_, moved.on_device.nbytes());
    }
    received_.push_back(std::move(moved));
  }
  void add(c10::intrusive_ptr<c10d::Work> work) { works_.push_back(std::move(work)); }
  void be_alone() { is_alone_ = true; }
  void take_over(Exchange& other) {
    is_alone_ = is_alone_ || other.is_alone_;
    works_.insert(works_.end(), other.works_.begin(), other.works_.end());
    sent_.insert(sent_.end(), other.sent_.begin(), other.sent_.end());
    received_.insert(received_.end(), other.received_.begin(), other.received_.end());
    in_place_ = in_place_ || other.in_place_;
    poison_ = std::max(poison_, other.poison_);
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (has_ended_) return true;
    has_ended_ = true;
    for (const auto& [device, staged] : sent_)  // no error yet: whoever knows throws away what the others got
      if (!same_bytes(staged, device.const_data_ptr())) count("sent data changed before wait");
    const std::vector<unsigned char> poison(in_place_ ? 0 : poison_, 0xFF);
    if (!in_place_)
      for (const auto& [device, staged] : received_)
        TORCH_CHECK(same_bytes(device, poison.data()),
                    "pretended NCCL: what is being received was written to before wait()");
    if (is_alone_) hear_nothing();
    for (auto& work : works_) try {
        work->wait(timeout);
      } catch (const std::exception&) {
        if (!is_deaf()) throw;
        hear_nothing();
      }
    for (const auto& [device, staged] : received_)
      std::memcpy(device.data_ptr(), staged.const_data_ptr(), staged.nbytes());
    sent_.clear(), received_.clear(), works_.clear();
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
  Works works_;
  std::vector<Moved> sent_, received_;
  size_t poison_ = 0;
  bool in_place_ = false, has_ended_ = false, is_alone_ = false;
};

class Nccl final : public c10d::Backend {
 public:
  Nccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(rank, size), store_(std::move(store)), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "nccl"; }
  bool supportsCoalescing() const override { return true; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return num_collectives_; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }

  void startCoalescing() override {
    together_ = c10::make_intrusive<Exchange>();
    is_together_ = true;
  }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    is_together_ = false;
    return std::move(together_);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<Tensor>& tensors, const c10d::BroadcastOptions& how) override {
    check_all({only(tensors)});
    auto exchange = c10::make_intrusive<Exchange>();
    std::vector<Tensor> staged{as_it_is(tensors[0])};
    (getRank() == how.rootRank) ? exchange->send({tensors[0], staged[0]}) : exchange->receive({tensors[0], staged[0]});
    add(*exchange, [&] { return gloo_->broadcast(staged, how); });
    return begun(exchange);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<Tensor>& tensors, const c10d::AllreduceOptions& how) override {
    check_all({only(tensors)});
    auto exchange = c10::make_intrusive<Exchange>();
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
    check_all(all);
    auto exchange = c10::make_intrusive<Exchange>();
    std::vector<Tensor> sent{as_it_is(inputs[0])};
    std::vector<std::vector<Tensor>> staged(1);
    exchange->send({inputs[0], sent[0]});
    for (const Tensor& output : outputs[0]) {
      staged[0].push_back(room_for(output));
      exchange->receive({output, staged[0].back()});
    }
    add(*exchange, [&] { return gloo_->allgather(staged, sent, how); });
    return begun(exchange);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(Tensor& output, Tensor& input,
                                                 const c10d::AllgatherOptions& how) override {
    return exchanged(output, input, [&](Tensor& to, Tensor& from) { return gloo_->_allgather_base(to, from, how); });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(Tensor& output, Tensor& input,
                                                      const c10d::ReduceScatterOptions& how) override {
    return exchanged(output, input,
                     [&](Tensor& to, Tensor& from) { return gloo_->_reduce_scatter_base(to, from, how); });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& to_sizes,
                                               std::vector<int64_t>& from_sizes,
                                               const c10d::AllToAllOptions& how) override {
    return exchanged(output, input, [&](Tensor& to, Tensor& from) {
      return gloo_->alltoall_base(to, from, to_sizes, from_sizes, how);
    });
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& how) override {
    gloo_->barrier(how)->wait();
    return c10::make_intrusive<Exchange>();
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<Tensor>& tensors, int to, int) override {
    check({only(tensors)}, to);
    auto exchange = c10::make_intrusive<Exchange>();
    std::vector<Tensor> staged{as_it_is(tensors[0])};
    exchange->send({tensors[0], staged[0]});
    add(*exchange, [&] { return gloo_->send(staged, to, num_sent_[to]++); });
    return begun(exchange);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<Tensor>& tensors, int from, int) override {
    check({only(tensors)}, from);
    auto exchange = c10::make_intrusive<Exchange>();
    std::vector<Tensor> staged{room_for(tensors[0])};
    exchange->receive({tensors[0], staged[0]});
    add(*exchange, [&] { return gloo_->recv(staged, from, num_received_[from]++); });
    return begun(exchange);
  }

 private:
  template <typename Begin>
  c10::intrusive_ptr<c10d::Work> exchanged(Tensor& output, Tensor& input, Begin begin) {
    check_all({output, input});
    auto exchange = c10::make_intrusive<Exchange>();
    Tensor from = as_it_is(input), to = room_for(output);
    exchange->send({input, from});
    exchange->receive({output, to});
    Tensor to_flat = to.view(-1), from_flat = from.view(-1);
    add(*exchange, [&] { return begin(to_flat, from_flat); });
    return begun(exchange);
  }
  c10::intrusive_ptr<c10d::Work> begun(c10::intrusive_ptr<Exchange> exchange) {
    if (!is_together_) return exchange;
    together_->take_over(*exchange);
    return c10::make_intrusive<Exchange>();
  }

  template <typename Begin>
  static void add(Exchange& exchange, Begin begin) {
    try {
      exchange.add(begin());
    } catch (const std::exception&) {
      if (!is_deaf()) throw;
      exchange.be_alone();
    }
  }

  static const Tensor& only(const std::vector<Tensor>& tensors) {
    TORCH_CHECK(tensors.size() == 1, "pretended NCCL: one tensor for each call");
    return tensors[0];
  }
  void check_all(const std::vector<Tensor>& tensors) {
    ++num_collectives_;
    check(tensors, getRank());
    for (int peer = 0; peer < getSize(); ++peer) check_place(peer, tensors[0].device());
  }
  void check(const std::vector<Tensor>& tensors, int peer) {
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
