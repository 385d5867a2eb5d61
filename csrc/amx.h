/* Convolutions and linear layers by AMX, whose tiles are matrices of 16 rows: products of bf16 numbers, sums in single
 * precision. Included by bf16.h. A batch lies in parts of 32 samples, two blocks, one after the other, `apart` vectors from
 * one to the next.
 *
 * A convolution is a product of outputs x taps and channels by taps and channels x samples, one for each pixel. Its image
 * is packed so that a pixel's channels lie side by side, with zeros around the image: then neighbouring taps of one row
 * are one run of memory. A route (dsgd/gradients/amx_routes.py) says which pixels are packed where, and where each pixel of
 * the result begins to read. Pixels of one phase read runs of the same taps: a convolution has one phase, and its
 * gradient as many as its strides leave different sets of taps.
 *
 *     route: pixels that are packed, phases, source[pixels] (-1: zeros); then for each phase
 *            places, runs, length; taps[runs, length]; offset[runs]; (pixel of the result, first packed pixel)[places] */

#define TILE 1024 /* bytes */
#define TILES_OF(channels) (((channels) + 15) / 16)

static const int32_t one_pixel[] = {1, 1, 0, 1, 1, 1, 0, 0, 0, 0}; /* the route of a linear layer */

typedef struct {
    long places, runs, length;
    const int32_t *taps, *offset, *place;
    const int32_t *next; /* the next phase */
} Phase;

static Phase phase_at(const int32_t *at)
{
    const int32_t *taps = at + 3, *offset = taps + at[1] * at[2], *place = offset + at[1];
    return (Phase){at[0], at[1], at[2], taps, offset, place, place + 2 * at[0]};
}

/* Return the pairs of channels that a pixel is packed in: a few more than there are, so that they fill tiles. */
static long pairs_of(long channels)
{
    const long pairs = (channels + 1) / 2, unit = pairs > 32 ? 16 : pairs > 2 ? 4 : 1;
    return (pairs + unit - 1) / unit * unit;
}

/* Return into how many tiles of equally many rows, 16 at most, a run is cut. */
static long tiles_of_run(long rows)
{
    long tiles = 1;
    while (rows % tiles || rows / tiles > 16)
        tiles++;
    return tiles;
}

/* Set the shapes of the tiles: 0 to 3 sums, 4 and 5 left factors, 6 and 7 right ones, of `depth` pairs. */
TARGET static void NAME(shape_tiles)(long depth)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = i == 4 || i == 5 ? 4 * depth : 64;
        shapes.rows[i] = i >= 6 ? depth : 16;
    }
    _tile_loadconfig(&shapes);
}

/* Set to[tiles of outputs, runs, tiles of a run] to the weights of a phase. Return the end. w_output, w_input: distances
 * in w between outputs and between inputs. */
TARGET static STORED *NAME(pack_weights)(STORED *to, const REAL *w, const Phase *f, long outputs, long inputs,
                                         long w_output, long w_input, long pairs)
{
    const long rows = f->length * pairs, tiles = tiles_of_run(rows), depth = rows / tiles;
    const long count = TILES_OF(outputs) * f->runs * tiles;
    memset(to, 0, count * TILE);
    for (long o = 0; o < outputs; o++)
        for (long run = 0; run < f->runs; run++)
            for (long t = 0; t < f->length; t++) {
                const REAL *from = w + o * w_output + f->taps[run * f->length + t];
                long row = t * pairs % depth;
                char *tile = (char *)to + ((o / 16 * f->runs + run) * tiles + t * pairs / depth) * TILE + o % 16 * 64;
                for (long c = 0; c < inputs; c += 2) {
                    const __m128 pair = _mm_set_ps(0, 0, c + 1 < inputs ? from[(c + 1) * w_input] : 0, from[c * w_input]);
                    const int numbers = _mm_cvtsi128_si32((__m128i)_mm_cvtneps_pbh(pair));
                    memcpy(tile + 4 * row, &numbers, sizeof numbers);
                    if (++row == depth) {
                        row = 0;
                        tile += TILE;
                    }
                }
            }
    return to + count * (TILE / 2);
}

/* Set to[2, pixels, pairs, 16 samples, 2] to the packed pixels of x [channels, x_pixels, 2]. */
TARGET static void NAME(pack_channels)(__m512i *to, const stored *x, const int32_t *source, long pixels, long channels,
                                       long pairs, long x_pixels)
{
    const __m512i from = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                          5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i behind = _mm512_add_epi16(from, _mm512_set1_epi16(16)), zero = _mm512_setzero_si512();
    for (long q = 0; q < pixels; q++)
        for (long i = 0; i < pairs; i++) {
            __m512i even = zero, odd = zero;
            const stored *at = x + (2 * i * x_pixels + source[q]) * 2;
            if (source[q] >= 0 && 2 * i < channels)
                even = _mm512_loadu_si512(at);
            if (source[q] >= 0 && 2 * i + 1 < channels)
                odd = _mm512_loadu_si512(at + x_pixels * 2);
            to[q * pairs + i] = _mm512_permutex2var_epi16(even, from, odd);
            to[(pixels + q) * pairs + i] = _mm512_permutex2var_epi16(even, behind, odd);
        }
}

/* Set `outs` outputs of one pixel to sums[2][16][16] + bias; with `adds` add them. apart: vectors between outputs. */
TARGET static void NAME(put)(stored *y, const vec *sums, const REAL *bias, long outs, long apart, int rectify, int adds)
{
    for (long o = 0; o < outs; o++)
        EACH(half, 2)
        {
            const vec value = sums[16 * half + o] + (bias ? bias[o] : 0);
            const long k = o * apart + half;
            STORE(y, k, adds ? LOAD(y, k) + value : rectify ? RECTIFIED(value, value) : value);
        }
}

/* Multiply left and right tiles, a and b, over the tiles of a run. */
#define EACH_TILE_OF_A_PHASE(...)                                                                                      \
    for (long run = 0, t = 0; run < f->runs; run++)                                                                    \
        for (long j = 0; j < tiles; j++, t++) {                                                                        \
            const char *left = weights + t * TILE, *right = packed + (f->offset[run] * pairs + j * depth) * 64;        \
            __VA_ARGS__                                                                                                \
        }

/* Compute the pixels of a phase. image: packed, its two blocks `half` bytes apart. */
TARGET static void NAME(convolve_phase)(stored *y, const char *image, long half, const char *w, const REAL *bias,
                                        const Phase *f, long outputs, long pairs, long y_pixels, int rectify, int adds)
{
    const long rows = f->length * pairs, tiles = tiles_of_run(rows), depth = rows / tiles;
    const long count = f->runs * tiles, apart = y_pixels * 2;
    vec sums[64];
    NAME(shape_tiles)(depth);
    for (long o = 0, outs; o < outputs; o += outs) {
        outs = outputs - o > 16 ? 32 : 16;
        const char *weights = w + o / 16 * count * TILE, *more = weights + count * TILE;
        stored *to = y + o * apart;
        const REAL *biases = bias ? bias + o : NULL;
        const long left_outs = outputs - o;
        for (long p = 0; p < f->places; p += outs == 32 ? 1 : 2) {
            const int32_t *at = f->place + 2 * p, *beside = p + 1 < f->places && outs == 16 ? at + 2 : at;
            const char *packed = image + at[1] * pairs * 64;
            const long further = (beside[1] - at[1]) * pairs * 64;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            if (outs == 32) {
                EACH_TILE_OF_A_PHASE({
                    _tile_loadd(4, left, 64);
                    _tile_loadd(6, right, 64);
                    _tile_dpbf16ps(0, 4, 6);
                    _tile_loadd(7, right + half, 64);
                    _tile_dpbf16ps(1, 4, 7);
                    _tile_loadd(5, more + t * TILE, 64);
                    _tile_dpbf16ps(2, 5, 6);
                    _tile_dpbf16ps(3, 5, 7);
                })
            } else {
                EACH_TILE_OF_A_PHASE({
                    _tile_loadd(4, left, 64);
                    _tile_loadd(6, right, 64);
                    _tile_dpbf16ps(0, 4, 6);
                    _tile_loadd(7, right + half, 64);
                    _tile_dpbf16ps(1, 4, 7);
                    _tile_loadd(6, right + further, 64);
                    _tile_dpbf16ps(2, 4, 6);
                    _tile_loadd(7, right + further + half, 64);
                    _tile_dpbf16ps(3, 4, 7);
                })
            }
            _tile_stored(0, sums, 64);
            _tile_stored(1, sums + 16, 64);
            _tile_stored(2, sums + 32, 64);
            _tile_stored(3, sums + 48, 64);
            NAME(put)(to + at[0] * 2, sums, biases, left_outs < 16 ? left_outs : 16, apart, rectify, adds);
            if (outs == 32)
                NAME(put)(to + 16 * apart + at[0] * 2, sums + 32, biases ? biases + 16 : NULL,
                          left_outs < 32 ? left_outs - 16 : 16, apart, rectify, adds);
            else if (beside != at)
                NAME(put)(to + beside[0] * 2, sums + 32, biases, left_outs < 16 ? left_outs : 16, apart, rectify, adds);
        }
    }
}

/* As `convolve` of layers.h, by a route; with `adds` the sums are added to y. */
TARGET static void NAME(convolve_route)(stored *y, const stored *x, const REAL *w, const REAL *bias,
                                        const int32_t *route, long outputs, long inputs, long w_output, long w_input,
                                        long x_pixels, long y_pixels, long parts, long apart, int rectify, int adds,
                                        void *scratch)
{
    const long pixels = route[0], phases = route[1], pairs = pairs_of(inputs), half = pixels * pairs * 64;
    const int32_t *source = route + 2;
    char *packed = scratch, *weights = packed + 2 * half;
    STORED *end = (STORED *)weights;
    Phase f = {.next = source + pixels};
    for (long i = 0; i < phases; i++) {
        f = phase_at(f.next);
        end = NAME(pack_weights)(end, w, &f, outputs, inputs, w_output, w_input, pairs);
    }
    for (long part = 0; part < parts; part++, x += apart, y += apart) {
        const char *of_phase = weights;
        NAME(pack_channels)((__m512i *)packed, x, source, pixels, inputs, pairs, x_pixels);
        f.next = source + pixels;
        for (long i = 0; i < phases; i++) {
            f = phase_at(f.next);
            NAME(convolve_phase)(y, packed, half, of_phase, bias, &f, outputs, pairs, y_pixels, rectify, adds);
            of_phase += TILES_OF(outputs) * f.runs * tiles_of_run(f.length * pairs) * TILE;
        }
    }
    _tile_release();
}

/* Set to[pixels, tiles of channels] to tiles of 16 channels x 32 samples. */
TARGET static void NAME(pack_samples)(__m512i *to, const stored *x, long pixels, long channels)
{
    const long tiles = TILES_OF(channels);
    for (long q = 0; q < pixels; q++)
        for (long c = 0; c < 16 * tiles; c++)
            to[q * 16 * tiles + c] = c < channels ? _mm512_loadu_si512(x + (c * pixels + q) * 2) : _mm512_setzero_si512();
}

/* Exchange rows and columns of 16 x 16 numbers of 32 bits: halves of ever larger squares change places. */
TARGET static inline void NAME(transpose)(__m512i *rows)
{
    __m512i next[16];
    EACH(i, 8)
    {
        next[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        next[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    EACH(i, 4)
    {
        rows[4 * i] = _mm512_unpacklo_epi64(next[4 * i], next[4 * i + 2]);
        rows[4 * i + 1] = _mm512_unpackhi_epi64(next[4 * i], next[4 * i + 2]);
        rows[4 * i + 2] = _mm512_unpacklo_epi64(next[4 * i + 1], next[4 * i + 3]);
        rows[4 * i + 3] = _mm512_unpackhi_epi64(next[4 * i + 1], next[4 * i + 3]);
    }
    EACH(i, 4)
    {
        next[i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
        next[4 + i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xdd);
        next[8 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
        next[12 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xdd);
    }
    EACH(i, 8)
    {
        rows[i] = _mm512_shuffle_i32x4(next[i], next[8 + i], 0x88);
        rows[8 + i] = _mm512_shuffle_i32x4(next[i], next[8 + i], 0xdd);
    }
}

/* Set to[pixels, tiles of channels] to tiles of 16 pairs of samples x 16 channels x 2, of packed pixels. */
TARGET static void NAME(pack_pairs)(__m512i *to, const stored *x, const int32_t *source, long pixels, long channels,
                                    long x_pixels)
{
    for (long q = 0; q < pixels; q++)
        for (long c = 0; c < channels; c += 16, to += 16) {
            __m512i rows[16];
            EACH(i, 16)
            rows[i] = source[q] >= 0 && c + i < channels ? _mm512_loadu_si512(x + ((c + i) * x_pixels + source[q]) * 2)
                                                         : _mm512_setzero_si512();
            NAME(transpose)(rows);
            EACH(i, 16) to[i] = rows[i];
        }
}

/* Sums over the pixels of `taps` neighbouring taps for 16 x 16 channels, added to what is in `sums` unless `first`.
 * left, right: tiles of the first pixels, left_apart and right_apart bytes from one pixel to the next. */
TARGET static void NAME(add_products)(char *sums, const char *left, const char *right, const Phase *f, long offset,
                                      long taps, long left_apart, long right_apart, int first)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (!first) {
        _tile_loadd(0, sums, 64);
        if (taps > 1)
            _tile_loadd(1, sums + TILE, 64);
        if (taps > 2)
            _tile_loadd(2, sums + 2 * TILE, 64);
        if (taps > 3)
            _tile_loadd(3, sums + 3 * TILE, 64);
    }
    for (long p = 0; p < f->places; p++) {
        const char *from = right + (f->place[2 * p + 1] + offset) * right_apart;
        _tile_loadd(4, left + f->place[2 * p] * left_apart, 64);
        _tile_loadd(6, from, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (taps > 1) {
            _tile_loadd(7, from + right_apart, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (taps > 2) {
            _tile_loadd(6, from + 2 * right_apart, 64);
            _tile_dpbf16ps(2, 4, 6);
        }
        if (taps > 3) {
            _tile_loadd(7, from + 3 * right_apart, 64);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    _tile_stored(0, sums, 64);
    if (taps > 1)
        _tile_stored(1, sums + TILE, 64);
    if (taps > 2)
        _tile_stored(2, sums + 2 * TILE, 64);
    if (taps > 3)
        _tile_stored(3, sums + 3 * TILE, 64);
}

/* As `convolve_weights` of layers.h, by a route. */
TARGET static void NAME(route_weights)(REAL *dw, const stored *x, const stored *dy, const int32_t *route, long outputs,
                                       long inputs, long taps, long x_pixels, long y_pixels, long parts, long apart,
                                       void *scratch)
{
    const long pixels = route[0], out_tiles = TILES_OF(outputs), in_tiles = TILES_OF(inputs);
    const int32_t *source = route + 2;
    const Phase f = phase_at(source + pixels);
    char *left = scratch, *right = left + y_pixels * out_tiles * TILE, *sums = right + pixels * in_tiles * TILE;
    NAME(shape_tiles)(16);
    for (long part = 0; part < parts; part++, x += apart, dy += apart) {
        char *to = sums;
        NAME(pack_samples)((__m512i *)left, dy, y_pixels, outputs);
        NAME(pack_pairs)((__m512i *)right, x, source, pixels, inputs, x_pixels);
        for (long o = 0; o < out_tiles; o++)
            for (long c = 0; c < in_tiles; c++)
                for (long run = 0; run < f.runs; run++)
                    for (long t = 0, some; t < f.length; t += some, to += some * TILE) {
                        some = f.length - t < 4 ? f.length - t : 4;
                        NAME(add_products)(to, left + o * TILE, right + c * TILE, &f, f.offset[run] + t, some,
                                           out_tiles * TILE, in_tiles * TILE, part == 0);
                    }
    }
    _tile_release();
    for (long o = 0; o < outputs; o++)
        for (long c = 0; c < inputs; c++)
            for (long t = 0; t < taps; t++) {
                const REAL *tile = (const REAL *)(sums + ((o / 16 * in_tiles + c / 16) * taps + t) * TILE);
                dw[(o * inputs + c) * taps + f.taps[t]] += tile[o % 16 * 16 + c % 16];
            }
}

/* Compute the activation of a convolution or linear layer of all parts. arena: of the first one. */
TARGET static void NAME(convolve_step)(const Step *s, STORED *arena, const REAL *x, long parts, long apart, void *scratch)
{
    const long outs = s->outputs / s->groups, ins = s->inputs / s->groups; /* channels of a group */
    const int32_t *route = s->kind == LINEAR ? one_pixel : s->route;
    for (long i = 0; i < s->groups; i++)
        NAME(convolve_route)((stored *)(arena + s->to) + i * outs * s->to_pixels * 2,
                             (const stored *)(arena + s->from) + i * ins * s->from_pixels * 2,
                             x + s->weight + i * outs * ins * s->taps, s->bias < 0 ? NULL : x + s->bias + i * outs, route,
                             outs, ins, ins * s->taps, s->taps, s->from_pixels, s->to_pixels, parts, apart, s->rectify, 0,
                             scratch);
}

/* Compute the gradients of its weights, into g, and of what it reads, into the arena of gradients. */
TARGET static void NAME(convolve_step_gradient)(const Step *s, const STORED *arena, STORED *gradients, const REAL *x, REAL *g,
                                                long parts, long apart, void *scratch)
{
    const long outs = s->outputs / s->groups, ins = s->inputs / s->groups;
    const int32_t *route = s->kind == LINEAR ? one_pixel : s->route, *back = s->kind == LINEAR ? one_pixel : s->route_back;
    for (long i = 0; i < s->groups; i++) {
        const stored *dy = (const stored *)(gradients + s->to) + i * outs * s->to_pixels * 2;
        const long weights = s->weight + i * outs * ins * s->taps, place = i * ins * s->from_pixels * 2;
        NAME(route_weights)(g + weights, (const stored *)(arena + s->from) + place, dy, route, outs, ins, s->taps,
                            s->from_pixels, s->to_pixels, parts, apart, scratch);
        if (s->has_gradient)
            NAME(convolve_route)((stored *)(gradients + s->from) + place, dy, x + weights, NULL, back, ins, outs, s->taps,
                                 ins * s->taps, s->to_pixels, s->from_pixels, parts, apart, 0, s->adds, scratch);
    }
}

/* Return the bytes of scratch that `convolve_route` needs. */
static long route_bytes(const int32_t *route, long outputs, long inputs)
{
    const long pairs = pairs_of(inputs);
    long bytes = 2 * route[0] * pairs * 64;
    Phase f = {.next = route + 2 + route[0]};
    for (long i = 0; i < route[1]; i++) {
        f = phase_at(f.next);
        bytes += TILES_OF(outputs) * f.runs * tiles_of_run(f.length * pairs) * TILE;
    }
    return bytes;
}

/* Return the bytes of scratch that a program needs. */
long NAME(scratch)(const Program *p)
{
    long largest = 0;
    for (const Step *s = p->steps; s < p->steps + p->count; s++) {
        const int32_t *route = s->kind == LINEAR ? one_pixel : s->route, *back = s->kind == LINEAR ? one_pixel : s->route_back;
        if (s->kind != CONVOLVE && s->kind != LINEAR)
            continue;
        const long outs = s->outputs / s->groups, ins = s->inputs / s->groups;
        const long tiles = s->to_pixels * TILES_OF(outs) + route[0] * TILES_OF(ins) + TILES_OF(outs) * TILES_OF(ins) * s->taps;
        const long bytes[] = {route_bytes(route, outs, ins), route_bytes(back, ins, outs), tiles * TILE};
        for (int i = 0; i < 3; i++)
            largest = bytes[i] > largest ? bytes[i] : largest;
    }
    return largest;
}

#undef TILE
#undef TILES_OF
