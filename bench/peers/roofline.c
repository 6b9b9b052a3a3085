/* The limit of the machine: each work of one pass as AVX-512 intrinsics do it, split evenly over threads; and, as
   roofline_move, so many cache lines read and written in turn with nothing computed.
   quantize multiplies by the reciprocal of the scale, so it may be off by one code at a tie; that makes it a limit, not a rival.
   The pointers are 64-byte aligned and n is a multiple of 64 times the number of threads. */
#include <immintrin.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_THREADS 64

typedef struct {
    const void *in;
    void *out;
    float scale;
    int32_t zero_point;
    float low, high;
} job_t;

typedef void (*loop_t)(job_t *job, size_t start, size_t stop);

typedef struct {
    job_t job;
    loop_t loop;
    size_t start, stop;
} share_t;

/* Fetch what will be read AHEAD bytes later: the hardware does so by itself, but not far enough for every loop. */
enum { NONE = 0, AHEAD = 2048 };

static inline void prefetch(const void *p, int ahead) {
    if (ahead)
        _mm_prefetch((const char *)p + ahead, _MM_HINT_T0);
}

#define INLINE static inline __attribute__((always_inline))
#define LOOP(name, body, ahead)                                                                                        \
    static void name(job_t *job, size_t start, size_t stop) { body(job, start, stop, ahead); }

static inline __m512i codes_of(const float *x, __m512 reciprocal, __m512i zero_point) {
    __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(x), reciprocal));
    return _mm512_add_epi32(rounded, zero_point);
}

static inline __m512 values_of(const int8_t *q, __m512 scale, __m512i zero_point) {
    __m512i code = _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)q));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(code, zero_point)), scale);
}

INLINE void quantize_store_body(job_t *job, size_t start, size_t stop, int ahead) {
    const float *x = job->in;
    int8_t *q = job->out;
    __m512 reciprocal = _mm512_set1_ps(1.0f / job->scale);
    __m512i zero_point = _mm512_set1_epi32(job->zero_point);
    for (size_t i = start; i < stop; i += 16) {
        prefetch(x + i, ahead);
        _mm_store_si128((__m128i *)(q + i), _mm512_cvtsepi32_epi8(codes_of(x + i, reciprocal, zero_point)));
    }
}

/* Four vectors of codes make one full cache line, which is what a streaming store needs to be worth it. */
static void quantize_stream(job_t *job, size_t start, size_t stop) {
    const float *x = job->in;
    int8_t *q = job->out;
    __m512 reciprocal = _mm512_set1_ps(1.0f / job->scale);
    __m512i zero_point = _mm512_set1_epi32(job->zero_point);
    for (size_t i = start; i < stop; i += 64) {
        __m512i line = _mm512_castsi128_si512(_mm512_cvtsepi32_epi8(codes_of(x + i, reciprocal, zero_point)));
        line = _mm512_inserti32x4(line, _mm512_cvtsepi32_epi8(codes_of(x + i + 16, reciprocal, zero_point)), 1);
        line = _mm512_inserti32x4(line, _mm512_cvtsepi32_epi8(codes_of(x + i + 32, reciprocal, zero_point)), 2);
        line = _mm512_inserti32x4(line, _mm512_cvtsepi32_epi8(codes_of(x + i + 48, reciprocal, zero_point)), 3);
        _mm512_stream_si512((__m512i *)(q + i), line);
    }
    _mm_sfence();
}

static void dequantize_store(job_t *job, size_t start, size_t stop) {
    const int8_t *q = job->in;
    float *y = job->out;
    __m512 scale = _mm512_set1_ps(job->scale);
    __m512i zero_point = _mm512_set1_epi32(job->zero_point);
    for (size_t i = start; i < stop; i += 16)
        _mm512_store_ps(y + i, values_of(q + i, scale, zero_point));
}

INLINE void dequantize_stream_body(job_t *job, size_t start, size_t stop, int ahead) {
    const int8_t *q = job->in;
    float *y = job->out;
    __m512 scale = _mm512_set1_ps(job->scale);
    __m512i zero_point = _mm512_set1_epi32(job->zero_point);
    for (size_t i = start; i < stop; i += 16) {
        prefetch(q + i, ahead);
        _mm512_stream_ps(y + i, values_of(q + i, scale, zero_point));
    }
    _mm_sfence();
}

static inline __m512 fake_quantized(const float *x, __m512 reciprocal, __m512 scale, __m512i zero_point) {
    __m512i code = codes_of(x, reciprocal, zero_point);
    code = _mm512_max_epi32(_mm512_min_epi32(code, _mm512_set1_epi32(127)), _mm512_set1_epi32(-128));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(code, zero_point)), scale);
}

static void fake_quantize_store(job_t *job, size_t start, size_t stop) {
    const float *x = job->in;
    float *y = job->out;
    __m512 scale = _mm512_set1_ps(job->scale), reciprocal = _mm512_set1_ps(1.0f / job->scale);
    __m512i zero_point = _mm512_set1_epi32(job->zero_point);
    for (size_t i = start; i < stop; i += 16)
        _mm512_store_ps(y + i, fake_quantized(x + i, reciprocal, scale, zero_point));
}

INLINE void fake_quantize_stream_body(job_t *job, size_t start, size_t stop, int ahead) {
    const float *x = job->in;
    float *y = job->out;
    __m512 scale = _mm512_set1_ps(job->scale), reciprocal = _mm512_set1_ps(1.0f / job->scale);
    __m512i zero_point = _mm512_set1_epi32(job->zero_point);
    for (size_t i = start; i < stop; i += 16) {
        prefetch(x + i, ahead);
        _mm512_stream_ps(y + i, fake_quantized(x + i, reciprocal, scale, zero_point));
    }
    _mm_sfence();
}

/* Four accumulators of each kind hide the latency of min and max. */
INLINE void minmax_body(job_t *job, size_t start, size_t stop, int ahead) {
    const float *x = job->in;
    __m512 low[4], high[4];
    for (int k = 0; k < 4; k++)
        low[k] = high[k] = _mm512_load_ps(x + start + 16 * k);
    for (size_t i = start; i < stop; i += 64)
        for (int k = 0; k < 4; k++) {
            prefetch(x + i + 16 * k, ahead);
            __m512 v = _mm512_load_ps(x + i + 16 * k);
            low[k] = _mm512_min_ps(low[k], v);
            high[k] = _mm512_max_ps(high[k], v);
        }
    for (int k = 1; k < 4; k++) {
        low[0] = _mm512_min_ps(low[0], low[k]);
        high[0] = _mm512_max_ps(high[0], high[k]);
    }
    job->low = _mm512_reduce_min_ps(low[0]);
    job->high = _mm512_reduce_max_ps(high[0]);
}

LOOP(quantize_store, quantize_store_body, NONE)
LOOP(quantize_store_ahead, quantize_store_body, AHEAD)
LOOP(dequantize_stream, dequantize_stream_body, NONE)
LOOP(dequantize_stream_ahead, dequantize_stream_body, AHEAD)
LOOP(fake_quantize_stream, fake_quantize_stream_body, NONE)
LOOP(fake_quantize_stream_ahead, fake_quantize_stream_body, AHEAD)
LOOP(minmax, minmax_body, NONE)
LOOP(minmax_ahead, minmax_body, AHEAD)

/* In the order of LOOPS in roofline.py. */
static const loop_t LOOPS[] = {
    quantize_store,      quantize_store_ahead, quantize_stream,
    dequantize_store,    dequantize_stream,    dequantize_stream_ahead,
    fake_quantize_store, fake_quantize_stream, fake_quantize_stream_ahead,
    minmax,              minmax_ahead,
};

static void *do_share(void *argument) {
    share_t *share = argument;
    share->loop(&share->job, share->start, share->stop);
    return NULL;
}

/* Run LOOPS[which] over n elements; range, if not NULL, receives the least low and the greatest high of the threads. */
int roofline_run(int which, const void *in, void *out, size_t n, float scale, int zero_point, int threads, float *range) {
    share_t shares[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    if (threads < 1 || threads > MAX_THREADS || n % (64 * (size_t)threads))
        return -1;
    size_t part = n / (size_t)threads;
    for (int t = 0; t < threads; t++) {
        job_t job = {in, out, scale, zero_point, 0.0f, 0.0f};
        shares[t] = (share_t){job, LOOPS[which], part * (size_t)t, part * (size_t)(t + 1)};
        if (t > 0 && pthread_create(&ids[t], NULL, do_share, &shares[t]))
            return -1;
    }
    do_share(&shares[0]);
    for (int t = 1; t < threads; t++)
        pthread_join(ids[t], NULL);
    for (int t = 0; range && t < threads; t++) {
        range[0] = t && range[0] < shares[t].job.low ? range[0] : shares[t].job.low;
        range[1] = t && range[1] > shares[t].job.high ? range[1] : shares[t].job.high;
    }
    return 0;
}

typedef struct {
    const char *in;
    char *out;
    size_t reads, writes, first, last;
    int streaming;
    __m512i mixed;
} move_t;

/* Read `reads` lines and write the last of them `writes` times, step by step. What was read is mixed, so that it is. */
static void *do_move(void *argument) {
    move_t *m = argument;
    __m512i line = _mm512_setzero_si512(), mixed = line;
    for (size_t step = m->first; step < m->last; step++) {
        const char *in = m->in + 64 * m->reads * step;
        char *out = m->out + 64 * m->writes * step;
        for (size_t k = 0; k < m->reads; k++) {
            prefetch(in + 64 * k, AHEAD);
            line = _mm512_load_si512(in + 64 * k);
            mixed = _mm512_xor_si512(mixed, line);
        }
        for (size_t k = 0; k < m->writes; k++)
            if (m->streaming)
                _mm512_stream_si512((__m512i *)(out + 64 * k), line);
            else
                _mm512_store_si512(out + 64 * k, line);
    }
    _mm_sfence();
    m->mixed = mixed;
    return NULL;
}

/* Move `steps` steps; the result depends on all that was read. */
int64_t roofline_move(const void *in, void *out, size_t reads, size_t writes, int streaming, size_t steps, int threads) {
    move_t shares[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    int64_t mixed = 0;
    if (threads < 1 || threads > MAX_THREADS)
        return -1;
    for (size_t t = 0; t < (size_t)threads; t++) {
        size_t first = steps * t / (size_t)threads, last = steps * (t + 1) / (size_t)threads;
        shares[t] = (move_t){in, out, reads, writes, first, last, streaming, _mm512_setzero_si512()};
        if (t > 0 && pthread_create(&ids[t], NULL, do_move, &shares[t]))
            return -1;
    }
    do_move(&shares[0]);
    for (int t = 1; t < threads; t++)
        pthread_join(ids[t], NULL);
    for (int t = 0; t < threads; t++)
        mixed ^= _mm512_reduce_add_epi64(shares[t].mixed);
    return mixed;
}
