/* Layers of token sequences, and linear layers. Included by kernels.c behind functions.h.
 *
 * Tokens are in the lanes, those of one sample after those of the other: token t of sample s is lane s tokens + t of an
 * activation [channels, 1, lanes]. A layer that acts on each token by itself treats a token as it would a sample. */

/* Sums for `outs` outputs and `vectors` vectors, in registers. */
#define LINEAR_BLOCK(outs, vectors)                                                                                    \
    {                                                                                                                  \
        vec sum[outs][vectors];                                                                                        \
        EACH(k, outs) EACH(l, vectors) sum[k][l] = (vec){0} + (bias ? bias[o + k] : 0);                                \
        const REAL *weight = w + o * w_output;                                                                         \
        for (long c = 0; c < inputs; c++, weight += w_input) {                                                         \
            vec value[vectors];                                                                                        \
            EACH(l, vectors) value[l] = x[c * blocks + b + l];                                                         \
            EACH(k, outs) EACH(l, vectors) sum[k][l] += weight[k * w_output] * value[l];                               \
        }                                                                                                              \
        EACH(k, outs) EACH(l, vectors) y[(o + k) * blocks + b + l] =                                                   \
            rectify ? RECTIFIED(sum[k][l], sum[k][l]) : sum[k][l];                                                     \
    }

/* y[o] = bias[o] + sum over c of w[o, c] x[c], and with `rectify` a ReLU of that; y: [outputs, blocks], x: [inputs,
 * blocks]. w_output, w_input: distances in w between outputs and between inputs. bias: [outputs], or NULL. */
TARGET static void NAME(linear)(vec *y, const vec *x, const REAL *w, const REAL *bias, long outputs, long inputs,
                                long w_output, long w_input, long blocks, int rectify)
{
    for (long b = 0, vectors; b < blocks; b += vectors) {
        vectors = b + BLOCK <= blocks ? BLOCK : 1;
        for (long o = 0, outs; o < outputs; o += outs) {
            outs = vectors == BLOCK ? 6 : 8;
            if (o + outs > outputs)
                outs = vectors == BLOCK && o + 4 <= outputs ? 4 : 1;
            if (vectors == BLOCK && outs == 6)
                LINEAR_BLOCK(6, BLOCK)
            else if (vectors == BLOCK && outs == 4)
                LINEAR_BLOCK(4, BLOCK)
            else if (vectors == BLOCK)
                LINEAR_BLOCK(1, BLOCK)
            else if (outs == 8)
                LINEAR_BLOCK(8, 1)
            else
                LINEAR_BLOCK(1, 1)
        }
    }
}

/* y[c] of a token: row `token` of a table w [rows, channels]. tokens: [lanes]. */
TARGET static void NAME(embed)(REAL *y, const REAL *tokens, const REAL *w, long channels, long lanes)
{
    for (long c = 0; c < channels; c++)
        for (long l = 0; l < lanes; l++)
            y[c * lanes + l] = w[(long)tokens[l] * channels + c];
}

/* Add the gradient of the table of `embed` to dw, over the lanes that hold a token. */
TARGET static void NAME(embed_gradient)(REAL *dw, const REAL *dy, const REAL *tokens, long channels, long count,
                                        long lanes)
{
    for (long l = 0; l < count; l++)
        for (long c = 0; c < channels; c++)
            dw[(long)tokens[l] * channels + c] += dy[c * lanes + l];
}

/* y = x + w[row[t]] at token t of each sample, of a table w [rows, channels]. row: [tokens]. */
TARGET static void NAME(offset)(REAL *y, const REAL *x, const REAL *w, const int32_t *row, long channels, long tokens,
                                long lanes)
{
    for (long c = 0; c < channels; c++)
        for (long l = 0, t = 0; l < lanes; l++, t = t + 1 < tokens ? t + 1 : 0)
            y[c * lanes + l] = x[c * lanes + l] + w[row[t] * channels + c];
}

/* Add the gradient of the table of `offset` to dw, over the lanes that hold a token. */
TARGET static void NAME(offset_gradient)(REAL *dw, const REAL *dy, const int32_t *row, long channels, long tokens,
                                         long count, long lanes)
{
    for (long l = 0, t = 0; l < count; l++, t = t + 1 < tokens ? t + 1 : 0)
        for (long c = 0; c < channels; c++)
            dw[row[t] * channels + c] += dy[c * lanes + l];
}

/* The attention of one head in one sample, whose first token is in lane `first`. */
typedef struct {
    const REAL *k, *v;             /* [width, lanes] from that token on */
    long tokens, width, lanes;     /* width: channels of the head */
    long blocks;                   /* vectors that hold the tokens of a sample */
    REAL scale;
    int causal;
} NAME(Head);

/* Set k and v of a head to those of a sample whose first token is in lane `first`. Return its place in q, k and v. */
TARGET static long NAME(go_to)(NAME(Head) *h, const REAL *k, const REAL *v, long head, long first)
{
    const long place = head * h->width * h->lanes + first;
    h->k = k + place;
    h->v = v + place;
    return place;
}

/* Copy the tokens of a sample from x [channels, lanes] to y [channels, blocks], with zeros behind them. */
TARGET static void NAME(take_tokens)(vec *y, const REAL *x, const NAME(Head) *h)
{
    memset(y, 0, h->width * h->blocks * sizeof(vec));
    for (long c = 0; c < h->width; c++)
        memcpy(y + c * h->blocks, x + c * h->lanes, h->tokens * sizeof(REAL));
}

/* Set p[j, i] to the softmax over the keys j of scale k_j q_i, for the queries i, which are in the lanes; of a causal
 * head over j <= i, and 0 elsewhere. q: [width, blocks]. p: [tokens, blocks]. */
TARGET static void NAME(attend_to)(vec *p, const vec *q, const NAME(Head) *h)
{
    NAME(linear)(p, q, h->k, NULL, h->tokens, h->width, 1, h->lanes, h->blocks, 0);
    for (long b = 0; b < h->blocks; b++) {
        vec query, max_score = (vec){0} - (REAL)INFINITY, sum = {0};
        EACH(l, LANES) query[l] = h->causal ? b * LANES + l : h->tokens;
        for (long j = 0; j < h->tokens; j++) {
            const vec score = p[j * h->blocks + b] *= h->scale;
            max_score = CHOOSE((score > max_score) & (query >= (REAL)j), score, max_score);
        }
        for (long j = 0; j < h->tokens; j++) {
            vec *to = p + j * h->blocks + b;
            *to = WHERE(query >= (REAL)j, NAME(exp)(*to - max_score));
            sum += *to;
        }
        for (long j = 0; j < h->tokens; j++)
            p[j * h->blocks + b] /= sum;
    }
}

/* Scaled dot-product attention: y = sum over j of p[j] v[j], of every head and sample. q, k, v, y: [heads, width,
 * lanes]. count: tokens that are there. h: all but k and v. scratch: (2 tokens + 3 width) blocks vectors, and tokens
 * width numbers. */
TARGET static void NAME(attention)(REAL *y, const REAL *q, const REAL *k, const REAL *v, NAME(Head) h, long heads,
                                   long count, vec *scratch)
{
    vec *queries = scratch, *result = queries + h.width * h.blocks, *p = result + h.width * h.blocks;
    memset(y, 0, heads * h.width * h.lanes * sizeof(REAL));
    for (long head = 0; head < heads; head++)
        for (long first = 0; first < count; first += h.tokens) {
            const long place = NAME(go_to)(&h, k, v, head, first);
            NAME(take_tokens)(queries, q + place, &h);
            NAME(attend_to)(p, queries, &h);
            NAME(linear)(result, p, h.v, NULL, h.width, h.tokens, h.lanes, 1, h.blocks, 0);
            for (long c = 0; c < h.width; c++)
                memcpy(y + place + c * h.lanes, result + c * h.blocks, h.tokens * sizeof(REAL));
        }
}

/* Add values [width, apart] of the tokens of a sample to a gradient, from that of its first token on. */
TARGET static void NAME(give_tokens)(REAL *to, const REAL *values, long apart, const NAME(Head) *h)
{
    for (long c = 0; c < h->width; c++)
        for (long t = 0; t < h->tokens; t++)
            to[c * h->lanes + t] += values[c * apart + t];
}

/* Add the gradients of `attention` to dq, dk and dv, from ds[j, i] = scale p (v_j dy_i - sum over j of p v_j dy_i):
 * dq_i = sum over j of ds k_j, dk_j = sum over i of ds q_i, dv_j = sum over i of p dy_i. */
TARGET static void NAME(attention_gradient)(REAL *dq, REAL *dk, REAL *dv, const REAL *dy, const REAL *q, const REAL *k,
                                            const REAL *v, NAME(Head) h, long heads, long count, vec *scratch)
{
    static const int32_t only = 0;
    vec *queries = scratch, *gradients = queries + h.width * h.blocks, *result = gradients + h.width * h.blocks;
    vec *p = result + h.width * h.blocks, *ds = p + h.tokens * h.blocks;
    REAL *sums = (REAL *)(ds + h.tokens * h.blocks); /* [width, tokens] */
    for (long head = 0; head < heads; head++)
        for (long first = 0; first < count; first += h.tokens) {
            const long place = NAME(go_to)(&h, k, v, head, first);
            NAME(take_tokens)(queries, q + place, &h);
            NAME(take_tokens)(gradients, dy + place, &h);
            NAME(attend_to)(p, queries, &h);
            memset(sums, 0, h.width * h.tokens * sizeof(REAL));
            NAME(convolve_weights)(sums, p, gradients, &only, h.width, h.tokens, 1, 1, 1, h.blocks);
            NAME(give_tokens)(dv + place, sums, h.tokens, &h);
            NAME(linear)(ds, gradients, h.v, NULL, h.tokens, h.width, 1, h.lanes, h.blocks, 0);
            for (long b = 0; b < h.blocks; b++) {
                vec mean = {0};
                for (long j = 0; j < h.tokens; j++)
                    mean += p[j * h.blocks + b] * ds[j * h.blocks + b];
                for (long j = 0; j < h.tokens; j++)
                    ds[j * h.blocks + b] = (ds[j * h.blocks + b] - mean) * p[j * h.blocks + b] * h.scale;
            }
            NAME(linear)(result, ds, h.k, NULL, h.width, h.tokens, h.lanes, 1, h.blocks, 0);
            NAME(give_tokens)(dq + place, (const REAL *)result, h.blocks * LANES, &h);
            memset(sums, 0, h.width * h.tokens * sizeof(REAL));
            NAME(convolve_weights)(sums, ds, queries, &only, h.width, h.tokens, 1, 1, 1, h.blocks);
            NAME(give_tokens)(dk + place, sums, h.tokens, &h);
        }
}

/* Set the gradient of the mean cross entropy over `all` tokens of a batch, of logits z [classes, blocks] against labels
 * [count], 0 in lanes without a token. Return the share of the loss that these tokens have; -1 if a label is none of the
 * classes. real: [blocks], which lanes hold a token. */
TARGET static double NAME(token_entropy)(vec *dz, const vec *z, const int64_t *labels, const truth *real, long classes,
                                         long count, long all, long blocks)
{
    double loss = 0;
    for (long b = 0; b < blocks; b++) {
        vec max_logit = z[b], sum = {0};
        for (long c = 1; c < classes; c++)
            max_logit = CHOOSE(z[c * blocks + b] > max_logit, z[c * blocks + b], max_logit);
        for (long c = 0; c < classes; c++)
            sum += dz[c * blocks + b] = NAME(exp)(z[c * blocks + b] - max_logit);
        const vec share = 1 / (sum * (REAL)all);
        for (long c = 0; c < classes; c++)
            dz[c * blocks + b] = WHERE(real[b], dz[c * blocks + b] * share);
        for (long l = 0; l < LANES && b * LANES + l < count; l++) {
            const long label = labels[b * LANES + l];
            if (label < 0 || label >= classes)
                return -1;
            dz[label * blocks + b][l] -= (REAL)1 / all;
            loss += log(sum[l]) + max_logit[l] - z[label * blocks + b][l];
        }
    }
    return loss / all;
}
