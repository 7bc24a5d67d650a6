/* What the processor can do, asked once: folds are compiled for the oldest processor of a platform, and on x86 for
 * AVX2 too. Not for more: processors with FMA instructions get them from GCC 12 for complex products even where told
 * -ffp-contract=off, and round otherwise. */
#ifndef TOPOCOMM_PROCESSOR_H
#define TOPOCOMM_PROCESSOR_H

#if defined(__x86_64__)
#include <cpuid.h>

/* Whether processor and system have AVX2: bit 5 of leaf 7, and XMM and YMM registers in XCR0. */
static inline int has_avx2(void) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1u << 27)) || !(c & (1u << 28))) /* XGETBV and AVX */
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6u) == 6u && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 5)) != 0;
}

#define BEST(NAME) (has_avx2() ? NAME##_avx2 : NAME##_baseline)
#else
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
