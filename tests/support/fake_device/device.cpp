// A device of torch that computes on the CPU: its tensors lie in memory of their own, and no operation
// takes them beside tensors of the CPU. Streams run their work late, so that a missing wait shows.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <vector>

namespace {

int64_t live = 0, peak = 0;
bool broken = false;  // as after a wild write: nothing works any more in this process

struct Block {
  void* data;
  int64_t bytes;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  live -= block->bytes;
  std::free(block->data);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(!broken, "fake error: an illegal memory access was encountered");
    auto* block = new Block{std::aligned_alloc(64, (bytes / 64 + 1) * 64), static_cast<int64_t>(bytes)};
    live += block->bytes;
    peak = std::max(peak, live);
    return {block->data, block, &free_block, c10::Device(c10::DeviceType::PrivateUse1, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
};

Memory memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory);

// Streams: the default one, number 0, is up to date always. Another one falls behind when it sleeps: what
// is copied on it then waits until something else is done on it, or somebody waits for it.
int64_t current = 0;
std::map<int64_t, std::vector<std::function<void()>>> waiting;
std::map<int64_t, bool> asleep;

void catch_up(int64_t stream) {
  asleep[stream] = false;
  auto work = std::move(waiting[stream]);
  waiting[stream].clear();
  for (auto& step : work) step();
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor seen(const at::Tensor& tensor) { return tensor.is_cpu() ? tensor : on_cpu(tensor); }

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  auto copy = [from, to] { seen(to).copy_(seen(from)); };
  if (asleep[current] && !from.is_cpu() && !to.is_cpu()) {
    waiting[current].push_back(copy);
  } else {
    catch_up(current);
    copy();
  }
  return to;
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); }

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor unfold(const at::Tensor& self, int64_t axis, int64_t size, int64_t step) {
  return at::native::unfold(self, axis, size, step);
}

at::Scalar local_scalar(const at::Tensor& self) {
  catch_up(current);
  return on_cpu(self).item();
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}

// Everything else: on the CPU, on copies, and a tensor of the CPU is refused beside those of the device.
void elsewhere(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  catch_up(current);
  for (const auto& value : torch::jit::last(*stack, operation.schema().arguments().size())) {
    if (value.isTensor() && value.toTensor().defined()) {
      const auto& tensor = value.toTensor();
      TORCH_CHECK(!tensor.is_cpu() || tensor.dim() == 0,
                  "Expected all tensors to be on the same device, but found at least two devices, fake:0 and cpu! (",
                  operation.schema().name(), ")");
    }
  }
  at::native::cpu_fallback(operation, stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, kernels) {
  kernels.impl("empty.memory_format", &empty);
  kernels.impl("empty_strided", &empty_strided);
  kernels.impl("as_strided", &as_strided);
  kernels.impl("view", &view);
  kernels.impl("_reshape_alias", &reshape_alias);
  kernels.impl("unfold", &unfold);
  kernels.impl("_copy_from", &copy_from);
  kernels.impl("_copy_from_and_resize", [](const at::Tensor& from, const at::Tensor& to) {
    to.resize_(from.sizes());
    return copy_from(from, to, false);
  });
  kernels.impl("_local_scalar_dense", &local_scalar);
  kernels.impl("resize_", &resize);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, every) {
  every.fallback(torch::CppFunction::makeFromBoxedFunction<&elsewhere>());
}

TORCH_LIBRARY(fake_device, functions) {
  functions.def("set_stream(int stream) -> ()", [](int64_t stream) { current = stream; });
  functions.def("current_stream() -> int", []() { return current; });
  functions.def("sleep() -> ()", []() { asleep[current] = current != 0; });
  functions.def("synchronise(int stream) -> ()", [](int64_t stream) { catch_up(stream); });
  functions.def("break_down() -> ()", []() { broken = true; });
  functions.def("live() -> int", []() { return live; });
  functions.def("peak() -> int", []() { return peak; });
  functions.def("reset_peak() -> ()", []() { peak = live; });
}

}  // namespace
