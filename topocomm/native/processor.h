/* What the processor can do, asked once: folds are compiled for the oldest processor of a platform, and on x86 for
 * AVX2 too. Not for more: processors with FMA instructions get them from GCC 12 for complex products even where told
 * -ffp-contract=off, and round otherwise. */
#ifndef TOPOCOMM_PROCESSOR_H
#define TOPOCOMM_PROCESSOR_H

enum {
    HAS_AVX2 = 1,
    HAS_FMA = 2,    /* FMA3, and conversions of float16 (F16C) */
    HAS_AVX512 = 4, /* F, DQ, BW and VL */
};

#if defined(__x86_64__)
#include <cpuid.h>

/* What processor and system have: leaves 1 and 7, and the registers that the system saves (XCR0). */
static inline int processor_features(void) {
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1u << 27)) || !(c & (1u << 28))) /* XGETBV and AVX */
        return 0;
    int fma = (c & (1u << 12)) && (c & (1u << 29));
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((saved & 0x6u) != 0x6u || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) /* XMM and YMM */
        return 0;
    unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    int wide = (saved & 0xe6u) == 0xe6u && (b & avx512) == avx512; /* ZMM and masks too */
    return (b & (1u << 5) ? HAS_AVX2 : 0) | (fma ? HAS_FMA : 0) | (wide ? HAS_AVX512 : 0);
}

#define BEST(NAME) (processor_features() & HAS_AVX2 ? NAME##_avx2 : NAME##_baseline)
#else
static inline int processor_features(void) { return 0; }

#define BEST(NAME) NAME##_baseline
#endif

/* The name of what a source defines for the processor it is compiled for; BEST takes the best one for this machine. */
#define JOIN(NAME, PROCESSOR) NAME##_##PROCESSOR
#define FOR(PROCESSOR, NAME) JOIN(NAME, PROCESSOR)

/* Before a loop whose turns do not depend on each other, although the result may go to the memory of an operand. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#endif
