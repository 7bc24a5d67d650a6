/* Copies through the caches and past them. */
#ifndef TOPOCOMM_COPIES_H
#define TOPOCOMM_COPIES_H

#include <stdint.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* sanitizers do not see stores past the caches */
#endif

#if defined(__x86_64__) && !defined(SANITIZED)
#include <immintrin.h>

enum { VECTOR_BYTES = sizeof(__m128i) };

/* Copy past the caches; `drain` comes before the release store that publishes it. */
static inline void stream(char *to, const char *from, int64_t bytes) {
    int64_t at = -(intptr_t)to & (VECTOR_BYTES - 1);
    at = at < bytes ? at : bytes;
    memcpy(to, from, (size_t)at);
    for (; at + VECTOR_BYTES <= bytes; at += VECTOR_BYTES)
        _mm_stream_si128((__m128i *)(void *)(to + at), _mm_loadu_si128((const __m128i *)(const void *)(from + at)));
    memcpy(to + at, from + at, (size_t)(bytes - at));
}

static inline void drain(void) { _mm_sfence(); }
#else
static inline void stream(char *to, const char *from, int64_t bytes) { memmove(to, from, (size_t)bytes); }

static inline void drain(void) {}
#endif

/* The processor's clock on x86, where every process may read it; elsewhere 0: plain stores then seem quick. */
static inline int64_t cycles(void) {
#if defined(__x86_64__)
    return (int64_t)__builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

#endif
