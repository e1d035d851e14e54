// What CUDA's kernels refuse or wait for: names of operations, from torch's documentation and its sources.
#pragma once

#include <ATen/Context.h>

#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

namespace pretend {

// torch.use_deterministic_algorithms says which raise; CPU kernels of the same names do not.
inline const std::set<std::string> kWithoutDeterministicForm{"_adaptive_avg_pool2d_backward",
                                                             "_adaptive_avg_pool3d_backward",
                                                             "_ctc_loss_backward",
                                                             "adaptive_max_pool2d_backward",
                                                             "avg_pool3d_backward",
                                                             "fractional_max_pool2d_backward",
                                                             "fractional_max_pool3d_backward",
                                                             "grid_sampler_2d_backward",
                                                             "grid_sampler_3d_backward",
                                                             "histc",
                                                             "max_unpool2d",
                                                             "max_unpool3d",
                                                             "nll_loss2d_forward",
                                                             "put_",
                                                             "reflection_pad1d_backward",
                                                             "reflection_pad2d_backward",
                                                             "reflection_pad3d_backward",
                                                             "upsample_bicubic2d_backward",
                                                             "upsample_linear1d_backward",
                                                             "upsample_trilinear3d_backward"};
// Their results are numbers of the host, or tensors whose size the host has to know.
inline const std::set<std::string> kWaits{"_unique2", "equal",      "is_nonzero",        "masked_select",
                                          "nonzero",  "unique_dim", "unique_consecutive"};
inline const std::set<std::string> kOverBlas{"addmm", "addmv", "baddbmm", "bmm", "dot", "mm"};
// They take indices that lie on the host.
inline const std::set<std::string> kTakesHostTensors{"_index_put_impl_", "index", "index_put_"};

// As torch does: the variable is looked at once, at the process's first product of matrices.
inline void check_blas() {
  static const bool is_set = [] {
    const char* found = std::getenv("CUBLAS_WORKSPACE_CONFIG");
    std::string_view text = found ? found : "";
    return text == ":4096:8" || text == ":16:8";
  }();
  TORCH_CHECK(
      is_set || !at::globalContext().deterministicAlgorithms(),
      "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
      "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses "
      "CuBLAS and you have CUDA >= 10.2. To enable deterministic behavior in this case, you must set an "
      "environment variable before running your PyTorch application: CUBLAS_WORKSPACE_CONFIG=:4096:8 or "
      "CUBLAS_WORKSPACE_CONFIG=:16:8.");
}

}  // namespace pretend
