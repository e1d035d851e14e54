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

#define SAMEBITS_ROUNDED(NAME) \
  float NAME##f(float x) { return static_cast<float>(NAME(static_cast<double>(x))); }
#define SAMEBITS_ROUNDED_OF_TWO(NAME) \
  float NAME##f(float x, float y) { return static_cast<float>(NAME(static_cast<double>(x), static_cast<double>(y))); }

SAMEBITS_ROUNDED(acos)
SAMEBITS_ROUNDED(acosh)
SAMEBITS_ROUNDED(asin)
SAMEBITS_ROUNDED(asinh)
SAMEBITS_ROUNDED(atan)
SAMEBITS_ROUNDED(atanh)
SAMEBITS_ROUNDED(cbrt)
SAMEBITS_ROUNDED(cos)
SAMEBITS_ROUNDED(cosh)
SAMEBITS_ROUNDED(erf)
SAMEBITS_ROUNDED(erfc)
SAMEBITS_ROUNDED(exp)
SAMEBITS_ROUNDED(exp2)
SAMEBITS_ROUNDED(expm1)
SAMEBITS_ROUNDED(lgamma)
SAMEBITS_ROUNDED(log)
SAMEBITS_ROUNDED(log10)
SAMEBITS_ROUNDED(log1p)
SAMEBITS_ROUNDED(log2)
SAMEBITS_ROUNDED(sin)
SAMEBITS_ROUNDED(sinh)
SAMEBITS_ROUNDED(tan)
SAMEBITS_ROUNDED(tanh)
SAMEBITS_ROUNDED(tgamma)
SAMEBITS_ROUNDED_OF_TWO(atan2)
SAMEBITS_ROUNDED_OF_TWO(hypot)
SAMEBITS_ROUNDED_OF_TWO(pow)

void sincosf(float x, float* sine, float* cosine) {
  double wide_sine = 0;
  double wide_cosine = 0;
  sincos(x, &wide_sine, &wide_cosine);
  *sine = static_cast<float>(wide_sine);
  *cosine = static_cast<float>(wide_cosine);
}

#define SAMEBITS_ROUNDED_COMPLEX(NAME) \
  Narrow NAME##f(Narrow x) { return static_cast<Narrow>(__builtin_##NAME(static_cast<Wide>(x))); }

SAMEBITS_ROUNDED_COMPLEX(cacos)
SAMEBITS_ROUNDED_COMPLEX(cacosh)
SAMEBITS_ROUNDED_COMPLEX(casin)
SAMEBITS_ROUNDED_COMPLEX(casinh)
SAMEBITS_ROUNDED_COMPLEX(catan)
SAMEBITS_ROUNDED_COMPLEX(catanh)
SAMEBITS_ROUNDED_COMPLEX(ccos)
SAMEBITS_ROUNDED_COMPLEX(ccosh)
SAMEBITS_ROUNDED_COMPLEX(cexp)
SAMEBITS_ROUNDED_COMPLEX(clog)
SAMEBITS_ROUNDED_COMPLEX(csin)
SAMEBITS_ROUNDED_COMPLEX(csinh)
SAMEBITS_ROUNDED_COMPLEX(csqrt)
SAMEBITS_ROUNDED_COMPLEX(ctan)
SAMEBITS_ROUNDED_COMPLEX(ctanh)
float cabsf(Narrow x) { return static_cast<float>(__builtin_cabs(static_cast<Wide>(x))); }
Narrow cpowf(Narrow x, Narrow y) {
  return static_cast<Narrow>(__builtin_cpow(static_cast<Wide>(x), static_cast<Wide>(y)));
}

}  // extern "C"
