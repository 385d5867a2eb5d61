/* Convolutions of 3 x 3 taps with stride 1 by Winograd's minimal filtering F(2 x 2, 3 x 3): 16 products for four pixels
 * and a pair of channels, where the taps ask for 36. Included by kernels.c behind layers.h.
 *
 * Images are cut into tiles of 2 x 2 pixels, whose sums depend on 4 x 4 pixels of the input. With the matrices below
 * y = A' [(G w G') * (B' x B)] A, the inner products place by place: at each of the 16 places a matrix product over the
 * channels. Source: Lavin, Gray 2016, Fast algorithms for convolutional neural networks, CVPR.
 *
 *     B' = 1  0 -1  0     G =  1    0    0      A' = 1  1  1  0
 *          0  1  1  0         1/2  1/2  1/2          0  1 -1 -1
 *          0 -1  1  0         1/2 -1/2  1/2
 *          0  1  0 -1          0    0    1
 *
 * A group is some tiles of a batch, each with the samples of one vector, that are transformed together: few, so that
 * what one step leaves is in the cache for the next. TILES of them are in registers at once. */

#undef FEW
#undef MORE
#undef PLACE_OF
#define FEW 6   /* tiles in a group, of `convolve_tiles` */
#define MORE 12 /* and of `convolve_tiles_weights`, which adds up over them */

/* Vectors from one place of a group's tiles to the next: a few more than needed, as places whose distance is a power of
 * two would drive each other out of the cache. */
#define PLACE_OF(channels, group) ((channels) * (group) + 5)

typedef struct {
    long rows, columns, padding; /* of the input, and the zeros around it */
    long tile_columns, tiles, out_rows, out_columns, blocks;
} NAME(Tiling);

TARGET static NAME(Tiling) NAME(tiling)(long rows, long columns, long padding, long blocks)
{
    const long out_rows = rows + 2 * padding - 2, out_columns = columns + 2 * padding - 2;
    const long across = (out_columns + 1) / 2;
    return (NAME(Tiling)){rows, columns, padding, across, (out_rows + 1) / 2 * across, out_rows, out_columns, blocks};
}

/* Set u[16, outputs, inputs] = G w G'. turned: of the convolution that leads a gradient back, whose taps are in the
 * other order. w_output, w_input: distances in w between outputs and between inputs. */
TARGET static void NAME(transform_weights)(REAL *u, const REAL *w, long outputs, long inputs, long w_output,
                                           long w_input, int turned)
{
    const long count = outputs * inputs;
    for (long o = 0; o < outputs; o++)
        for (long c = 0; c < inputs; c++) {
            const REAL *g = w + o * w_output + c * w_input;
            REAL half[4][3];
            EACH(j, 3)
            {
                const REAL g0 = g[turned ? 8 - j : j], g1 = g[turned ? 5 - j : 3 + j], g2 = g[turned ? 2 - j : 6 + j];
                half[0][j] = g0;
                half[1][j] = (g0 + g1 + g2) / 2;
                half[2][j] = (g0 - g1 + g2) / 2;
                half[3][j] = g2;
            }
            EACH(i, 4)
            {
                REAL *to = u + 4 * i * count + o * inputs + c;
                to[0] = half[i][0];
                to[count] = (half[i][0] + half[i][1] + half[i][2]) / 2;
                to[2 * count] = (half[i][0] - half[i][1] + half[i][2]) / 2;
                to[3 * count] = half[i][2];
            }
        }
}

/* Set v[16, channels, group] = B' x B of the tiles of a group, from `first` on. apart: vectors between places. */
TARGET static void NAME(transform_inputs)(vec *v, const vec *x, const NAME(Tiling) *t, long channels, long first,
                                          long group, long apart)
{
    long place[MORE][16];
    truth inside[MORE][16];
    int all[MORE];
    for (long k = 0; k < group; k++) {
        const long b = (first + k) / t->tiles, tile = (first + k) % t->tiles;
        const long row = tile / t->tile_columns * 2 - t->padding, column = tile % t->tile_columns * 2 - t->padding;
        all[k] = 1;
        EACH(i, 16)
        {
            const long r = row + i / 4, s = column + i % 4;
            const int is_inside = r >= 0 && s >= 0 && r < t->rows && s < t->columns;
            place[k][i] = is_inside ? (r * t->columns + s) * t->blocks + b : 0;
            inside[k][i] = (vec){0} + (REAL)is_inside > 0;
            all[k] &= is_inside;
        }
    }
    for (long c = 0; c < channels; c++, x += t->rows * t->columns * t->blocks, v += group)
        for (long k = 0; k < group; k++) {
            vec d[16], h[16];
            if (all[k])
                EACH(i, 16) d[i] = x[place[k][i]];
            else
                EACH(i, 16) d[i] = WHERE(inside[k][i], x[place[k][i]]);
            EACH(j, 4)
            {
                h[j] = d[j] - d[8 + j];
                h[4 + j] = d[4 + j] + d[8 + j];
                h[8 + j] = d[8 + j] - d[4 + j];
                h[12 + j] = d[4 + j] - d[12 + j];
            }
            EACH(i, 4)
            {
                v[(4 * i) * apart + k] = h[4 * i] - h[4 * i + 2];
                v[(4 * i + 1) * apart + k] = h[4 * i + 1] + h[4 * i + 2];
                v[(4 * i + 2) * apart + k] = h[4 * i + 2] - h[4 * i + 1];
                v[(4 * i + 3) * apart + k] = h[4 * i + 1] - h[4 * i + 3];
            }
        }
}

/* Sums over the inputs for `outs` outputs and `tiles` tiles at one place of the tiles. */
#define PRODUCT_BLOCK(outs, tiles_at_once)                                                                             \
    {                                                                                                                  \
        vec sum[outs][tiles_at_once];                                                                                  \
        EACH(i, outs) EACH(l, tiles_at_once) sum[i][l] = (vec){0};                                                     \
        for (long c = 0; c < inputs; c++) {                                                                            \
            vec value[tiles_at_once];                                                                                  \
            EACH(l, tiles_at_once) value[l] = v[c * group + k + l];                                                    \
            EACH(i, outs) EACH(l, tiles_at_once) sum[i][l] += u[(o + i) * inputs + c] * value[l];                      \
        }                                                                                                              \
        EACH(i, outs) EACH(l, tiles_at_once) m[(o + i) * group + k + l] = sum[i][l];                                   \
    }

/* Set m[outputs, group] = u[outputs, inputs] v[inputs, group], of one place. */
TARGET static void NAME(product)(vec *m, const REAL *u, const vec *v, long outputs, long inputs, long group)
{
    long k = 0;
    for (; k + TILES <= group; k += TILES) {
        long o = 0;
        for (; o + 4 <= outputs; o += 4)
            PRODUCT_BLOCK(4, TILES)
        for (; o < outputs; o++)
            PRODUCT_BLOCK(1, TILES)
    }
    for (; k < group; k++) {
        long o = 0;
        for (; o + 4 <= outputs; o += 4)
            PRODUCT_BLOCK(4, 1)
        for (; o < outputs; o++)
            PRODUCT_BLOCK(1, 1)
    }
}

/* The first pixel of each tile of a group, and which pixels are right of the image or below it. */
typedef struct {
    long place[MORE];
    int right[MORE], lower[MORE];
} NAME(Outputs);

TARGET static NAME(Outputs) NAME(outputs)(const NAME(Tiling) *t, long first, long group)
{
    NAME(Outputs) result;
    for (long k = 0; k < group; k++) {
        const long b = (first + k) / t->tiles, tile = (first + k) % t->tiles;
        const long row = tile / t->tile_columns * 2, column = tile % t->tile_columns * 2;
        result.place[k] = (row * t->out_columns + column) * t->blocks + b;
        result.right[k] = column + 1 < t->out_columns;
        result.lower[k] = row + 1 < t->out_rows;
    }
    return result;
}

/* Set the pixels of a group's tiles: y = A' m A + bias, and with `rectify` a ReLU of that; with `adds` it is added to y. */
TARGET static void NAME(transform_outputs)(vec *y, const vec *m, const REAL *bias, const NAME(Tiling) *t, long channels,
                                           long first, long group, long apart, int rectify, int adds)
{
    const long below = t->out_columns * t->blocks;
    const NAME(Outputs) at = NAME(outputs)(t, first, group);
    for (long c = 0; c < channels; c++, y += t->out_rows * below, m += group)
        for (long k = 0; k < group; k++) {
            const vec shift = (vec){0} + (bias ? bias[c] : 0);
            vec h[2][4], pixel[4], *to = y + at.place[k];
            EACH(j, 4)
            {
                const vec m1 = m[(4 + j) * apart + k], m2 = m[(8 + j) * apart + k];
                h[0][j] = m[j * apart + k] + m1 + m2;
                h[1][j] = m1 - m2 - m[(12 + j) * apart + k];
            }
            EACH(i, 2)
            {
                pixel[2 * i] = h[i][0] + h[i][1] + h[i][2] + shift;
                pixel[2 * i + 1] = h[i][1] - h[i][2] - h[i][3] + shift;
            }
            EACH(i, 4) pixel[i] = rectify ? RECTIFIED(pixel[i], pixel[i]) : pixel[i];
            const int inside[4] = {1, at.right[k], at.lower[k], at.lower[k] && at.right[k]};
            EACH(i, 4)
            if (inside[i]) {
                vec *place = to + (i / 2) * below + (i % 2) * t->blocks;
                *place = adds ? *place + pixel[i] : pixel[i];
            }
        }
}

/* As `convolve`, of 3 x 3 taps with stride 1, of all parts of a batch. turned: as in `transform_weights`. adds: as in `transform_outputs`.
 * scratch: room for 16 inputs outputs numbers behind 16 PLACE_OF vectors of inputs and of outputs. */
TARGET static void NAME(convolve_tiles)(vec *y, const vec *x, const REAL *w, const REAL *bias, long outputs, long inputs,
                                        long w_output, long w_input, long rows, long columns, long padding, NAME(Batch) a,
                                        int turned, int rectify, int adds, vec *scratch)
{
    const NAME(Tiling) t = NAME(tiling)(rows, columns, padding, a.blocks);
    const long v_apart = PLACE_OF(inputs, FEW), m_apart = PLACE_OF(outputs, FEW);
    vec *v = scratch, *m = v + 16 * v_apart;
    REAL *u = (REAL *)(m + 16 * m_apart);
    NAME(transform_weights)(u, w, outputs, inputs, w_output, w_input, turned);
    for (long part = 0; part < a.parts; part++, x += a.apart, y += a.apart)
        for (long first = 0; first < t.tiles * t.blocks; first += FEW) {
            const long left = t.tiles * t.blocks - first, group = left < FEW ? left : FEW;
            NAME(transform_inputs)(v, x, &t, inputs, first, group, v_apart);
            for (long i = 0; i < 16; i++)
                NAME(product)(m + i * m_apart, u + i * outputs * inputs, v + i * v_apart, outputs, inputs, group);
            NAME(transform_outputs)(y, m, bias, &t, outputs, first, group, m_apart, rectify, adds);
        }
}

/* Set z[16, channels, group] = A dy A' of the tiles of a group. */
TARGET static void NAME(transform_gradients)(vec *z, const vec *dy, const NAME(Tiling) *t, long channels, long first,
                                             long group, long apart)
{
    const long below = t->out_columns * t->blocks;
    const NAME(Outputs) at = NAME(outputs)(t, first, group);
    for (long c = 0; c < channels; c++, dy += t->out_rows * below, z += group)
        for (long k = 0; k < group; k++) {
            const vec *from = dy + at.place[k];
            vec d[4], h[4][2];
            d[0] = from[0];
            d[1] = at.right[k] ? from[t->blocks] : (vec){0};
            d[2] = at.lower[k] ? from[below] : (vec){0};
            d[3] = at.lower[k] && at.right[k] ? from[below + t->blocks] : (vec){0};
            EACH(j, 2)
            {
                h[0][j] = d[j];
                h[1][j] = d[j] + d[2 + j];
                h[2][j] = d[j] - d[2 + j];
                h[3][j] = -d[2 + j];
            }
            EACH(i, 4)
            {
                z[(4 * i) * apart + k] = h[i][0];
                z[(4 * i + 1) * apart + k] = h[i][0] + h[i][1];
                z[(4 * i + 2) * apart + k] = h[i][0] - h[i][1];
                z[(4 * i + 3) * apart + k] = -h[i][1];
            }
        }
}

/* Add sums over the tiles and samples of a group for `outs` x `ins` channels at one place. */
#define OUTER_BLOCK(outs, ins)                                                                                         \
    {                                                                                                                  \
        vec sum[outs * ins];                                                                                           \
        EACH(k, outs * ins) sum[k] = (vec){0};                                                                         \
        for (long k = 0; k < group; k++) {                                                                             \
            vec left[outs], right[ins];                                                                                \
            EACH(i, outs) left[i] = z[(o + i) * group + k];                                                            \
            EACH(l, ins) right[l] = v[(c + l) * group + k];                                                            \
            EACH(i, outs) EACH(l, ins) sum[i * ins + l] += left[i] * right[l];                                         \
        }                                                                                                              \
        REAL total[outs * ins];                                                                                        \
        LANE_SUMS(total, sum, outs * ins)                                                                              \
        EACH(i, outs) EACH(l, ins) du[(o + i) * inputs + c + l] += total[i * ins + l];                                 \
    }

TARGET static void NAME(outer)(REAL *du, const vec *z, const vec *v, long outputs, long inputs, long group)
{
    for (long o = 0; o < outputs; o += o + 4 <= outputs ? 4 : 1)
        for (long c = 0; c < inputs; c += o + 4 <= outputs && c + BLOCK <= inputs ? BLOCK : 1)
            if (o + 4 <= outputs && c + BLOCK <= inputs)
                OUTER_BLOCK(4, BLOCK)
            else if (o + 4 <= outputs)
                OUTER_BLOCK(4, 1)
            else
                OUTER_BLOCK(1, 1)
}

/* As `convolve_weights`, of 3 x 3 taps with stride 1, over all parts of a batch: dw += G' [sum of (A dy A') * (B' x B)] G.
 * scratch: as there. */
TARGET static void NAME(convolve_tiles_weights)(REAL *dw, const vec *x, const vec *dy, long outputs, long inputs,
                                                long rows, long columns, long padding, NAME(Batch) a, vec *scratch)
{
    const NAME(Tiling) t = NAME(tiling)(rows, columns, padding, a.blocks);
    const long count = outputs * inputs, v_apart = PLACE_OF(inputs, MORE), z_apart = PLACE_OF(outputs, MORE);
    vec *v = scratch, *z = v + 16 * v_apart;
    REAL *du = (REAL *)(z + 16 * z_apart);
    memset(du, 0, 16 * count * sizeof(REAL));
    for (long part = 0; part < a.parts; part++, x += a.apart, dy += a.apart)
        for (long first = 0; first < t.tiles * t.blocks; first += MORE) {
            const long left = t.tiles * t.blocks - first, group = left < MORE ? left : MORE;
            NAME(transform_inputs)(v, x, &t, inputs, first, group, v_apart);
            NAME(transform_gradients)(z, dy, &t, outputs, first, group, z_apart);
            for (long i = 0; i < 16; i++)
                NAME(outer)(du + i * count, z + i * z_apart, v + i * v_apart, outputs, inputs, group);
        }
    for (long k = 0; k < count; k++) {
        REAL half[3][4];
        EACH(j, 4)
        {
            const REAL sum = du[(4 + j) * count + k] + du[(8 + j) * count + k];
            half[0][j] = du[j * count + k] + sum / 2;
            half[1][j] = (du[(4 + j) * count + k] - du[(8 + j) * count + k]) / 2;
            half[2][j] = sum / 2 + du[(12 + j) * count + k];
        }
        EACH(i, 3)
        {
            dw[9 * k + 3 * i] += half[i][0] + (half[i][1] + half[i][2]) / 2;
            dw[9 * k + 3 * i + 1] += (half[i][1] - half[i][2]) / 2;
            dw[9 * k + 3 * i + 2] += (half[i][1] + half[i][2]) / 2 + half[i][3];
        }
    }
}
