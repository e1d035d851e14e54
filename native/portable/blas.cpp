// The BLAS that torch calls in MKL, computed by an OpenBLAS of one exact version, which the environment holds at its
// Haswell kernels (OPENBLAS_CORETYPE). What is not here stays MKL's, which the environment holds too
// (MKL_CBWR=COMPATIBLE), but slowly.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "library.hpp"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace {

constexpr const char* place = "SAMEBITS_PORTABLE_BLAS";  // where the library is, as in protocol/portable.py

void* of_openblas(const char* name) {
  // Loaded by the first call, in the process that computes: OpenBLAS makes its threads when it is loaded.
  static void* const openblas = [] {
    const char* const path = std::getenv(place);
    void* const found = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (found == nullptr) samebits::portable::give_up("OpenBLAS cannot be loaded from", path != nullptr ? path : place);
    return found;
  }();
  void* const found = dlsym(openblas, name);
  if (found == nullptr) samebits::portable::give_up("this OpenBLAS does not export", name);
  return found;
}

template <class Value>
struct Names;
template <>
struct Names<float> {
  static constexpr const char *gemm = "scipy_sgemm_", *gemv = "scipy_sgemv_", *dot = "scipy_sdot_",
                              *axpy = "scipy_saxpy_", *scal = "scipy_sscal_", *potrf = "scipy_spotrf_";
};
template <>
struct Names<double> {
  static constexpr const char *gemm = "scipy_dgemm_", *gemv = "scipy_dgemv_", *dot = "scipy_ddot_",
                              *axpy = "scipy_daxpy_", *scal = "scipy_dscal_", *potrf = "scipy_dpotrf_";
};

template <class Value>
void gemm(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
          const Value* alpha, const Value* a, const int* lda, const Value* b, const int* ldb, const Value* beta,
          Value* c, const int* ldc) {
  using Function = void (*)(const char*, const char*, const int*, const int*, const int*, const Value*, const Value*,
                            const int*, const Value*, const int*, const Value*, Value*, const int*);
  static const auto function = reinterpret_cast<Function>(of_openblas(Names<Value>::gemm));
  function(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template <class Value>
void gemv(const char* transpose, const int* m, const int* n, const Value* alpha, const Value* a, const int* lda,
          const Value* x, const int* step_x, const Value* beta, Value* y, const int* step_y) {
  using Function = void (*)(const char*, const int*, const int*, const Value*, const Value*, const int*, const Value*,
                            const int*, const Value*, Value*, const int*);
  static const auto function = reinterpret_cast<Function>(of_openblas(Names<Value>::gemv));
  function(transpose, m, n, alpha, a, lda, x, step_x, beta, y, step_y);
}

template <class Value>
Value dot(const int* n, const Value* x, const int* step_x, const Value* y, const int* step_y) {
  using Function = Value (*)(const int*, const Value*, const int*, const Value*, const int*);
  static const auto function = reinterpret_cast<Function>(of_openblas(Names<Value>::dot));
  return function(n, x, step_x, y, step_y);
}

template <class Value>
void axpy(const int* n, const Value* a, const Value* x, const int* step_x, Value* y, const int* step_y) {
  using Function = void (*)(const int*, const Value*, const Value*, const int*, Value*, const int*);
  static const auto function = reinterpret_cast<Function>(of_openblas(Names<Value>::axpy));
  function(n, a, x, step_x, y, step_y);
}

template <class Value>
void scal(const int* n, const Value* a, Value* x, const int* step_x) {
  using Function = void (*)(const int*, const Value*, Value*, const int*);
  static const auto function = reinterpret_cast<Function>(of_openblas(Names<Value>::scal));
  function(n, a, x, step_x);
}

// MKL's Cholesky of float32 matrices with 3 to 8 rows differs between CPUs in spite of MKL_CBWR. The rest of its LAPACK
// does not.
template <class Value>
void potrf(const char* triangle, const int* n, Value* a, const int* lda, int* info) {
  using Function = void (*)(const char*, const int*, Value*, const int*, int*);
  static const auto function = reinterpret_cast<Function>(of_openblas(Names<Value>::potrf));
  function(triangle, n, a, lda, info);
}

constexpr int column_major = 102, not_transposed = 111;  // cblas.h

template <class Value>
void gemm_batch(int layout, const int* transposes_a, const int* transposes_b, const int* ms, const int* ns,
                const int* ks, const Value* alphas, const Value** as, const int* ldas, const Value** bs,
                const int* ldbs, const Value* betas, Value** cs, const int* ldcs, int groups, const int* sizes) {
  for (int group = 0, at = 0; group < groups; ++group) {
    const char transpose_a = transposes_a[group] == not_transposed ? 'N' : 'T';
    const char transpose_b = transposes_b[group] == not_transposed ? 'N' : 'T';
    for (int member = 0; member < sizes[group]; ++member, ++at) {
      if (layout == column_major)
        gemm(&transpose_a, &transpose_b, ms + group, ns + group, ks + group, alphas + group, as[at], ldas + group,
             bs[at], ldbs + group, betas + group, cs[at], ldcs + group);
      else
        gemm(&transpose_b, &transpose_a, ns + group, ms + group, ks + group, alphas + group, bs[at], ldbs + group,
             as[at], ldas + group, betas + group, cs[at], ldcs + group);
    }
  }
}

}  // namespace

void samebits::portable::give_up(const char* what, const char* name) {
  std::fprintf(stderr, "samebits: numerics=\"portable\": %s %s.\n", what, name);
  _exit(2);
}

extern "C" {

// What Python asks: whether this library is before torch in this process, and what the processor lacks.
int samebits_portable_version() { return 1; }

const char* samebits_portable_lacks() {
#ifdef __x86_64__
  constexpr unsigned fma = 1U << 12, osxsave = 1U << 27, avx2 = 1U << 5;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & fma) == 0 || (c & osxsave) == 0) return "FMA";
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (b & avx2) == 0) return "AVX2";
  return "";
#else
  return "AVX2";
#endif
}

void samebits_portable_set_threads(int threads) {
  static const auto function = reinterpret_cast<void (*)(int)>(of_openblas("scipy_openblas_set_num_threads"));
  function(threads);
}

const char* samebits_portable_kernels() {
  static const auto function = reinterpret_cast<const char* (*)()>(of_openblas("scipy_openblas_get_corename"));
  return function();
}

#define SAMEBITS_BLAS(LETTER, VALUE)                                                                                  \
  void LETTER##gemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k, const VALUE* alpha,    \
                     const VALUE* a, const int* lda, const VALUE* b, const int* ldb, const VALUE* beta, VALUE* c,     \
                     const int* ldc) {                                                                                \
    gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                                                       \
  }                                                                                                                   \
  void LETTER##gemv_(const char* t, const int* m, const int* n, const VALUE* alpha, const VALUE* a, const int* lda,   \
                     const VALUE* x, const int* step_x, const VALUE* beta, VALUE* y, const int* step_y) {             \
    gemv(t, m, n, alpha, a, lda, x, step_x, beta, y, step_y);                                                         \
  }                                                                                                                   \
  VALUE LETTER##dot_(const int* n, const VALUE* x, const int* step_x, const VALUE* y, const int* step_y) {            \
    return dot(n, x, step_x, y, step_y);                                                                              \
  }                                                                                                                   \
  void LETTER##axpy_(const int* n, const VALUE* a, const VALUE* x, const int* step_x, VALUE* y, const int* step_y) {  \
    axpy(n, a, x, step_x, y, step_y);                                                                                 \
  }                                                                                                                   \
  void cblas_##LETTER##axpy(int n, VALUE a, const VALUE* x, int step_x, VALUE* y, int step_y) {                       \
    axpy(&n, &a, x, &step_x, y, &step_y);                                                                             \
  }                                                                                                                   \
  void LETTER##scal_(const int* n, const VALUE* a, VALUE* x, const int* step_x) { scal(n, a, x, step_x); }            \
  void LETTER##potrf_(const char* triangle, const int* n, VALUE* a, const int* lda, int* info) {                      \
    potrf(triangle, n, a, lda, info);                                                                                 \
  }                                                                                                                   \
  void cblas_##LETTER##gemm_batch(int layout, const int* tas, const int* tbs, const int* ms, const int* ns,           \
                                  const int* ks, const VALUE* alphas, const VALUE** as, const int* ldas,              \
                                  const VALUE** bs, const int* ldbs, const VALUE* betas, VALUE** cs, const int* ldcs, \
                                  int groups, const int* sizes) {                                                     \
    gemm_batch(layout, tas, tbs, ms, ns, ks, alphas, as, ldas, bs, ldbs, betas, cs, ldcs, groups, sizes);             \
  }

SAMEBITS_BLAS(s, float)
SAMEBITS_BLAS(d, double)
}
