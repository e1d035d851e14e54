// libm's functions in single precision, as torch calls them, rounded from those in double precision.
//
// glibc 2.41 replaced many of its functions in single precision, so their last bits depend on the Debian that one has.
// Those in double precision have been the same, and a last bit of theirs hardly ever reaches a float. This library is
// loaded before libm, so torch's calls come here.
#include <cmath>

// C's complex numbers; std::complex is passed in other registers.
__extension__ using Narrow = __complex__ float;
__extension__ using Wide = __complex__ double;

extern "C" {

#define LOCKSTEP_ROUNDED(NAME) \
  float NAME##f(float x) { return static_cast<float>(NAME(static_cast<double>(x))); }
#define LOCKSTEP_ROUNDED_OF_TWO(NAME) \
  float NAME##f(float x, float y) { return static_cast<float>(NAME(static_cast<double>(x), static_cast<double>(y))); }

LOCKSTEP_ROUNDED(acos)
LOCKSTEP_ROUNDED(acosh)
LOCKSTEP_ROUNDED(asin)
LOCKSTEP_ROUNDED(asinh)
LOCKSTEP_ROUNDED(atan)
LOCKSTEP_ROUNDED(atanh)
LOCKSTEP_ROUNDED(cbrt)
LOCKSTEP_ROUNDED(cos)
LOCKSTEP_ROUNDED(cosh)
LOCKSTEP_ROUNDED(erf)
LOCKSTEP_ROUNDED(erfc)
LOCKSTEP_ROUNDED(exp)
LOCKSTEP_ROUNDED(exp2)
LOCKSTEP_ROUNDED(expm1)
LOCKSTEP_ROUNDED(lgamma)
LOCKSTEP_ROUNDED(log)
LOCKSTEP_ROUNDED(log10)
LOCKSTEP_ROUNDED(log1p)
LOCKSTEP_ROUNDED(log2)
LOCKSTEP_ROUNDED(sin)
LOCKSTEP_ROUNDED(sinh)
LOCKSTEP_ROUNDED(tan)
LOCKSTEP_ROUNDED(tanh)
LOCKSTEP_ROUNDED(tgamma)
LOCKSTEP_ROUNDED_OF_TWO(atan2)
LOCKSTEP_ROUNDED_OF_TWO(hypot)
LOCKSTEP_ROUNDED_OF_TWO(pow)

void sincosf(float x, float* sine, float* cosine) {
  double wide_sine = 0;
  double wide_cosine = 0;
  sincos(x, &wide_sine, &wide_cosine);
  *sine = static_cast<float>(wide_sine);
  *cosine = static_cast<float>(wide_cosine);
}

#define LOCKSTEP_ROUNDED_COMPLEX(NAME) \
  Narrow NAME##f(Narrow x) { return static_cast<Narrow>(__builtin_##NAME(static_cast<Wide>(x))); }

LOCKSTEP_ROUNDED_COMPLEX(cacos)
LOCKSTEP_ROUNDED_COMPLEX(cacosh)
LOCKSTEP_ROUNDED_COMPLEX(casin)
LOCKSTEP_ROUNDED_COMPLEX(casinh)
LOCKSTEP_ROUNDED_COMPLEX(catan)
LOCKSTEP_ROUNDED_COMPLEX(catanh)
LOCKSTEP_ROUNDED_COMPLEX(ccos)
LOCKSTEP_ROUNDED_COMPLEX(ccosh)
LOCKSTEP_ROUNDED_COMPLEX(cexp)
LOCKSTEP_ROUNDED_COMPLEX(clog)
LOCKSTEP_ROUNDED_COMPLEX(csin)
LOCKSTEP_ROUNDED_COMPLEX(csinh)
LOCKSTEP_ROUNDED_COMPLEX(csqrt)
LOCKSTEP_ROUNDED_COMPLEX(ctan)
LOCKSTEP_ROUNDED_COMPLEX(ctanh)
float cabsf(Narrow x) { return static_cast<float>(__builtin_cabs(static_cast<Wide>(x))); }
Narrow cpowf(Narrow x, Narrow y) {
  return static_cast<Narrow>(__builtin_cpow(static_cast<Wide>(x), static_cast<Wide>(y)));
}

}  // extern "C"
