/* The gradients of n models by one program, one model after the other, so that what a model's layers hand on stays in
 * the cache. Included by kernels.c behind layers.h. No number of a model depends on the other models. */

#undef PLACE
#define PLACE(vector, place) ((place) < 0 ? NULL : (vector) + (place))

#undef OTHER
/* The number of `other` that number k of an ADD or MULTIPLY takes. */
#define OTHER(s, k) ((s)->window ? (s)->window[k] : (k))

#if !MIXED
TARGET static NAME(Head) NAME(head)(const Step *s, long tokens, long lanes)
{
    return (NAME(Head)){NULL, NULL, tokens, s->inputs / s->groups, lanes, (tokens + LANES - 1) / LANES, s->slope, s->causal};
}
#endif

/* Compute the activation of a step for one part of a batch, from sample `begin` on. x, statistics: parameters and buffers of
 * the model. real: [blocks], which lanes hold a sample; NULL in evaluation. masks: of dropout, of a batch of p->samples.
 * scratch: room for what a layer needs meanwhile. */
TARGET static void NAME(forward)(const Program *p, const Step *s, STORED *arena, const REAL *x, REAL *statistics,
                                 const truth *real, const uint8_t *masks, long begin, long samples, long blocks,
                                 vec *scratch)
{
    const stored *from = (const stored *)(arena + s->from), *other = (const stored *)(arena + s->other);
    stored *to = (stored *)(arena + s->to);
    const long count = s->outputs * s->to_pixels;
    switch (s->kind) {
    case GROUP_NORM:
        NAME(group_norm)(to, (vec *)(arena + s->kept), from, PLACE(x, s->weight), PLACE(x, s->bias), s->eps,
                         s->sums ? other : NULL, s->groups, s->outputs / s->groups, s->to_pixels, blocks, s->rectify);
        break;
    case ADD:
    case MULTIPLY:
        for (long k = 0; k < count; k++)
            for (long b = 0; b < blocks; b++) {
                const vec right = LOAD(other, OTHER(s, k) * blocks + b), left = LOAD(from, k * blocks + b);
                const vec value = s->kind == ADD ? left + (REAL)s->slope * right : left * right;
                STORE(to, k * blocks + b, s->rectify ? RECTIFIED(value, value) : value);
            }
        break;
    case GATHER: /* window: [count], of all channels and pixels */
        for (long k = 0; k < count; k++)
            for (long b = 0; b < blocks; b++) {
                const vec value = s->window[k] < 0 ? (vec){0} : LOAD(from, s->window[k] * blocks + b);
                STORE(to, k * blocks + b, s->rectify ? RECTIFIED(value, value) : value);
            }
        break;
    case AVERAGE_POOL:
        for (long k = 0; k < count * blocks; k++) {
            const long b = k % blocks, p = k / blocks % s->to_pixels, c = k / blocks / s->to_pixels;
            vec sum = {0};
            for (long t = 0; t < s->taps; t++) {
                const long q = s->window[t * s->to_pixels + p];
                if (q >= 0)
                    sum += LOAD(from, (c * s->from_pixels + q) * blocks + b);
            }
            sum = sum / (REAL)s->divisor[p];
            STORE(to, k, s->rectify ? RECTIFIED(sum, sum) : sum);
        }
        break;
    case MAX_POOL:
        for (long k = 0; k < count * blocks; k++) {
            const long b = k % blocks, p = k / blocks % s->to_pixels, c = k / blocks / s->to_pixels;
            vec largest = (vec){0} - (REAL)INFINITY;
            for (long t = 0; t < s->taps; t++) {
                const long q = s->window[t * s->to_pixels + p];
                if (q < 0)
                    continue;
                const vec value = LOAD(from, (c * s->from_pixels + q) * blocks + b);
                largest = WHERE(~(value <= largest), value) + WHERE(value <= largest, largest);
            }
            STORE(to, k, s->rectify ? RECTIFIED(largest, largest) : largest);
        }
        break;
    case ACTIVATE:
        for (long k = 0; k < count * blocks; k++) {
            const vec value = NAME(function)(s->function, LOAD(from, k), s->slope);
            STORE(to, k, s->rectify ? RECTIFIED(value, value) : value);
        }
        break;
    case DROPOUT:
        if (real)
            NAME(drop)(to, (stored *)(arena + s->kept), from, masks + s->mask * p->samples + begin * s->outputs, s->slope,
                       s->outputs, samples, blocks);
        else
            memcpy(to, from, s->outputs * blocks * sizeof(stored));
        break;
    case FIXED:
        for (long k = 0; k < count * blocks; k++)
            STORE(to, k, (vec){0} + (s->weight < 0 ? statistics + s->mean : x + s->weight)[k / blocks]);
        break;
#if !MIXED /* these are of layers.h, winograd.h and sequence.h; bf16.h has its own */
    case CONVOLVE: {
        const long outs = s->outputs / s->groups, ins = s->inputs / s->groups; /* channels of a group */
        for (long i = 0; i < s->groups; i++)
            NAME(convolve)(to + i * outs * s->to_pixels * blocks, from + i * ins * s->from_pixels * blocks,
                           x + s->weight + i * outs * ins * s->taps, s->bias < 0 ? NULL : x + s->bias + i * outs,
                           s->window, outs, ins, s->taps, ins * s->taps, s->taps, s->from_pixels, s->to_pixels, blocks,
                           s->rectify);
        break;
    }
    case NORM:
        NAME(norm_by_running)(to, from, PLACE(x, s->weight), PLACE(x, s->bias), statistics + s->mean,
                              statistics + s->variance, s->eps, s->sums ? other : NULL, s->outputs, s->to_pixels * blocks, s->rectify);
        break;
    case LINEAR:
        NAME(linear)(to, from, x + s->weight, PLACE(x, s->bias), s->outputs, s->inputs, s->inputs, 1, blocks,
                     s->rectify);
        break;
    case EMBED:
        NAME(embed)(arena + s->to, arena + s->from, x + s->weight, s->outputs, blocks * LANES);
        break;
    case OFFSET:
        NAME(offset)(arena + s->to, arena + s->from, x + s->weight, s->window, s->outputs, p->tokens, blocks * LANES);
        break;
    case ATTEND:
        NAME(attention)(arena + s->to, arena + s->from, arena + s->other, arena + s->third,
                        NAME(head)(s, p->tokens, blocks * LANES), s->groups, samples, scratch);
        break;
#endif
    }
}

/* Compute the activation of a step for all parts of a batch, from sample `begin` on. arena: of the first part. */
TARGET static void NAME(forward_parts)(const Program *p, const Step *s, STORED *arena, const REAL *x, REAL *statistics,
                                       NAME(Batch) a, int training, const uint8_t *masks, long begin, vec *scratch)
{
#if MIXED
    if (s->kind == CONVOLVE || s->kind == LINEAR) {
        NAME(convolve_step)(s, arena, x, a.parts, a.apart, scratch);
        return;
    }
#else
    if (s->kind == CONVOLVE && s->tiles) {
        NAME(convolve_tiles)((vec *)(arena + s->to), (vec *)(arena + s->from), x + s->weight, PLACE(x, s->bias), s->outputs,
                             s->inputs, s->inputs * 9, 9, s->rows, s->columns, s->padding, a, 0, s->rectify, 0, scratch);
        return;
    }
#endif
    if (s->kind == NORM && training) {
        NAME(norm)((stored *)(arena + s->to), (REAL *)(arena + s->kept), (const stored *)(arena + s->from),
                   PLACE(x, s->weight), PLACE(x, s->bias), PLACE(statistics, s->mean), PLACE(statistics, s->variance),
                   s->momentum, s->eps, s->sums ? (const stored *)(arena + s->other) : NULL, a, s->outputs, s->to_pixels,
                   s->rectify);
        return;
    }
    for (long part = 0; part < a.parts; part++, arena += p->arena, begin += p->part, a.samples -= p->part)
        NAME(forward)(p, s, arena, x, statistics, training ? a.real + part * a.blocks : NULL, masks, begin,
                      a.samples < p->part ? a.samples : p->part, a.blocks, scratch);
}

/* Add values to a gradient, or set it where they are the first. */
TARGET static void NAME(accumulate)(stored *to, const stored *values, long count, int adds)
{
    if (!adds)
        memcpy(to, values, count * sizeof(stored));
    else
        for (long k = 0; k < count; k++)
            STORE(to, k, LOAD(to, k) + LOAD(values, k));
}

/* Add the gradients of a step's parameters to g, for one part of a batch, and compute those of what it reads, into the arena
 * of gradients. */
TARGET static void NAME(backward)(const Program *p, const Step *s, const STORED *arena, STORED *gradients, STORED *spare,
                                  const REAL *x, REAL *g, const truth *real, long samples, long blocks, vec *scratch)
{
    const stored *from = (const stored *)(arena + s->from), *to = (const stored *)(arena + s->to);
    const long count = s->outputs * s->to_pixels, from_count = s->inputs * s->from_pixels;
    stored *dy = (stored *)(gradients + s->to), *given = (stored *)(gradients + s->from), *dx = s->adds ? (stored *)spare : given;
    const stored *other = (const stored *)(arena + s->other);
    stored *theirs = (stored *)(gradients + s->other); /* the gradient of `other` */
    if (s->rectify && s->kind != ADD) /* which does it as it hands it on */
        for (long k = 0; k < count * blocks; k++)
            STORE(dy, k, RECTIFIED(LOAD(dy, k), LOAD(to, k)));
    if (s->kind == CONVOLVE || s->kind == LINEAR)
        for (long o = 0; o < s->outputs && s->bias >= 0; o++)
            g[s->bias + o] += NAME(total)(dy + o * s->to_pixels * blocks, real, s->to_pixels, blocks);
    switch (s->kind) {
    case GROUP_NORM:
        if (s->sums)
            NAME(accumulate)(theirs, dy, count * blocks, s->other_adds);
        NAME(group_norm_gradient)(dx, PLACE(g, s->weight), PLACE(g, s->bias), dy, from,
                                  (const vec *)(arena + s->kept), PLACE(x, s->weight), s->groups,
                                  s->outputs / s->groups, s->to_pixels, blocks);
        break;
    case ADD:
        memset(theirs, 0, s->window && !s->other_adds ? s->rows * blocks * sizeof(stored) : 0);
        for (long k = 0; k < count * blocks; k++) {
            const vec value = s->rectify ? RECTIFIED(LOAD(dy, k), LOAD(to, k)) : LOAD(dy, k);
            const long place = s->window ? s->window[k / blocks] * blocks + k % blocks : k;
            STORE(given, k, s->adds ? LOAD(given, k) + value : value);
            STORE(theirs, place,
                  (s->window || s->other_adds ? LOAD(theirs, place) : (vec){0}) + (REAL)s->slope * value);
        }
        return;
    case MULTIPLY: /* one operand's gradient after the other's, as they may be one value */
        for (long k = 0; k < count * blocks; k++) {
            const vec value = LOAD(dy, k) * LOAD(other, OTHER(s, k / blocks) * blocks + k % blocks);
            STORE(given, k, s->adds ? LOAD(given, k) + value : value);
        }
        memset(theirs, 0, s->other_adds ? 0 : s->rows * blocks * sizeof(stored));
        for (long k = 0; k < count * blocks; k++) {
            const long place = OTHER(s, k / blocks) * blocks + k % blocks;
            STORE(theirs, place, LOAD(theirs, place) + LOAD(dy, k) * LOAD(from, k));
        }
        return;
    case GATHER: /* back: [inputs, from_pixels] */
        for (long k = 0; k < from_count; k++)
            for (long b = 0; b < blocks; b++)
                STORE(dx, k * blocks + b, s->back[k] < 0 ? (vec){0} : LOAD(dy, s->back[k] * blocks + b));
        break;
    case AVERAGE_POOL:
        memset(dx, 0, from_count * blocks * sizeof(stored));
        for (long k = 0; k < count * blocks; k++) {
            const long b = k % blocks, p = k / blocks % s->to_pixels, c = k / blocks / s->to_pixels;
            const vec share = LOAD(dy, k) / (REAL)s->divisor[p];
            for (long t = 0; t < s->taps; t++) {
                const long q = s->window[t * s->to_pixels + p];
                const long place = (c * s->from_pixels + q) * blocks + b;
                if (q >= 0)
                    STORE(dx, place, LOAD(dx, place) + share);
            }
        }
        break;
    case MAX_POOL: /* the first of equal ones has the gradient, as in torch */
        memset(dx, 0, from_count * blocks * sizeof(stored));
        for (long k = 0; k < count * blocks; k++) {
            const long b = k % blocks, p = k / blocks % s->to_pixels, c = k / blocks / s->to_pixels;
            vec left = LOAD(dy, k);
            for (long t = 0; t < s->taps; t++) {
                const long q = s->window[t * s->to_pixels + p];
                if (q < 0)
                    continue;
                const long place = (c * s->from_pixels + q) * blocks + b;
                const vec value = LOAD(from, place);
                STORE(dx, place, LOAD(dx, place) + WHERE(value == LOAD(to, k), left));
                left = WHERE(value != LOAD(to, k), left);
            }
        }
        break;
    case ACTIVATE:
        for (long k = 0; k < count * blocks; k++)
            STORE(dx, k, LOAD(dy, k) * NAME(derivative)(s->function, LOAD(from, k), LOAD(to, k), s->slope));
        break;
    case DROPOUT:
        for (long k = 0; k < count * blocks; k++)
            STORE(dx, k, LOAD(dy, k) * (LOAD((const stored *)(arena + s->kept), k) * (REAL)s->slope));
        break;
    case FIXED:
        for (long k = 0; k < count && s->weight >= 0; k++)
            g[s->weight + k] += NAME(total)(dy + k * blocks, real, 1, blocks);
        return;
#if MIXED
    case CONVOLVE:
    case LINEAR:
        return; /* amx.h does all parts at once */
#else
    case CONVOLVE: {
        const long outs = s->outputs / s->groups, ins = s->inputs / s->groups; /* channels of a group */
        if (s->tiles)
            return; /* winograd.h does all parts at once */
        for (long i = 0; i < s->groups; i++)
            NAME(convolve_weights)(g + s->weight + i * outs * ins * s->taps, from + i * ins * s->from_pixels * blocks,
                                   dy + i * outs * s->to_pixels * blocks, s->window, outs, ins, s->taps, s->from_pixels,
                                   s->to_pixels, blocks);
        for (long i = 0; i < s->groups && s->has_gradient; i++)
            NAME(convolve)(dx + i * ins * s->from_pixels * blocks, dy + i * outs * s->to_pixels * blocks,
                           x + s->weight + i * outs * ins * s->taps, NULL, s->back, ins, outs, s->taps, s->taps,
                           ins * s->taps, s->to_pixels, s->from_pixels, blocks, 0);
        break;
    }
    case LINEAR: {
        static const int32_t only = 0;
        if (samples <= FEW_SAMPLES && !p->tokens && s->outputs >= LANES && s->inputs >= LANES)
            NAME(outer_products)(g + s->weight, from, dy, s->outputs, s->inputs, samples, blocks);
        else
            NAME(convolve_weights)(g + s->weight, from, dy, &only, s->outputs, s->inputs, 1, 1, 1, blocks);
        if (s->has_gradient)
            NAME(linear)(dx, dy, x + s->weight, NULL, s->inputs, s->outputs, 1, s->inputs, blocks, 0);
        break;
    }
    case EMBED:
    case OFFSET:
        if (s->kind == EMBED)
            NAME(embed_gradient)(g + s->weight, (const REAL *)dy, arena + s->from, s->outputs, samples, blocks * LANES);
        else
            NAME(offset_gradient)(g + s->weight, (const REAL *)dy, s->window, s->outputs, p->tokens, samples,
                                  blocks * LANES);
        if (s->has_gradient)
            NAME(accumulate)(given, dy, from_count * blocks, s->adds);
        return;
    case ATTEND: {
        REAL *const dq = gradients + s->from, *const dk = gradients + s->other, *const dv = gradients + s->third;
        const long bytes = s->inputs * blocks * sizeof(vec);
        memset(dq, 0, s->adds ? 0 : bytes);
        memset(dk, 0, s->other_adds ? 0 : bytes);
        memset(dv, 0, s->third_adds ? 0 : bytes);
        NAME(attention_gradient)(dq, dk, dv, (const REAL *)dy, arena + s->from, arena + s->other, arena + s->third,
                                 NAME(head)(s, p->tokens, blocks * LANES), s->groups, samples, scratch);
        return;
    }
#endif
    }
    if (s->has_gradient && s->adds)
        NAME(accumulate)(given, dx, from_count * blocks, 1);
}

/* Set the gradient of the mean cross entropy over `all` samples of a batch, of logits z [classes, lanes] against labels
 * [samples], 0 in lanes without a sample. Return the share of the loss that these samples have; -1 if a label is none of
 * the classes. */
TARGET static double NAME(cross_entropy)(STORED *dz, const STORED *z, const int64_t *labels, long classes, long samples,
                                         long all, long lanes)
{
    double loss = 0;
    memset(dz, 0, classes * lanes * sizeof(STORED));
    for (long s = 0; s < samples; s++) {
        if (labels[s] < 0 || labels[s] >= classes)
            return -1;
        double max_logit = WIDENED(z[s]), sum = 0;
        for (long c = 1; c < classes; c++)
            if (WIDENED(z[c * lanes + s]) > max_logit)
                max_logit = WIDENED(z[c * lanes + s]);
        for (long c = 0; c < classes; c++)
            sum += exp(WIDENED(z[c * lanes + s]) - max_logit);
        for (long c = 0; c < classes; c++) {
            const double share = exp(WIDENED(z[c * lanes + s]) - max_logit) / sum;
            dz[c * lanes + s] = NARROWED((share - (c == labels[s])) / all);
        }
        loss += log(sum) + max_logit - WIDENED(z[labels[s] * lanes + s]);
    }
    return loss / all;
}

/* Bring samples [count, numbers] into the arena. Lanes that are left over repeat the first, whose numbers are no
 * surprise. */
TARGET static void NAME(enter)(STORED *to, const REAL *samples, long count, long numbers, long lanes)
{
    for (long j = 0; j < numbers; j++)
        for (long s = 0; s < lanes; s++)
            to[j * lanes + s] = NARROWED(samples[(s < count ? s : 0) * numbers + j]);
}

#if !MIXED
/* Compute the gradients of a convolution by tiles, for all parts of a batch, as `backward`. */
TARGET static void NAME(tiles_backward)(const Step *s, const REAL *arena, REAL *gradients, const REAL *x, REAL *g,
                                        NAME(Batch) a, vec *scratch)
{
    const vec *dy = (const vec *)(gradients + s->to);
    NAME(convolve_tiles_weights)(g + s->weight, (const vec *)(arena + s->from), dy, s->outputs, s->inputs, s->rows,
                                 s->columns, s->padding, a, scratch);
    if (s->has_gradient)
        NAME(convolve_tiles)((vec *)(gradients + s->from), dy, x + s->weight, NULL, s->inputs, s->outputs, 9, s->inputs * 9,
                             s->rows + 2 * s->padding - 2, s->columns + 2 * s->padding - 2, 2 - s->padding, a, 1, 0,
                             s->adds, scratch);
}
#endif

/* As `backward`, for all parts of a batch. arena, gradients: of the first part. */
TARGET static void NAME(backward_parts)(const Program *p, const Step *s, const STORED *arena, STORED *gradients, STORED *spare,
                                        const REAL *x, REAL *g, NAME(Batch) a, vec *scratch)
{
    if (s->kind == NORM) {
        NAME(norm_gradient)((stored *)(gradients + s->from), PLACE(g, s->weight), PLACE(g, s->bias),
                            (const stored *)(gradients + s->to), s->rectify ? (const stored *)(arena + s->to) : NULL,
                            (const stored *)(arena + s->from), (const REAL *)(arena + s->kept), PLACE(x, s->weight),
                            s->sums ? (stored *)(gradients + s->other) : NULL, s->other_adds, a, s->outputs, s->to_pixels,
                            s->adds);
        return;
    }
    for (long part = 0, left = a.samples; part < a.parts; part++, left -= p->part)
        NAME(backward)(p, s, arena + part * p->arena, gradients + part * p->arena, spare, x, g, a.real + part * a.blocks,
                       left < p->part ? left : p->part, a.blocks, scratch);
#if MIXED
    if (s->kind == CONVOLVE || s->kind == LINEAR)
        NAME(convolve_step_gradient)(s, arena, gradients, x, g, a.parts, a.apart, scratch);
#else
    if (s->kind == CONVOLVE && s->tiles)
        NAME(tiles_backward)(s, arena, gradients, x, g, a, scratch);
#endif
}

/* Set the gradient of the mean loss of a batch, of the logits z of one part. Return the share of the loss that its samples
 * have; -1 if a label is none of the classes. */
TARGET static double NAME(entropy)(const Program *p, STORED *dz, const STORED *z, const int64_t *labels,
                                   const truth *real, long samples, long blocks)
{
#if !MIXED
    if (p->tokens)
        return NAME(token_entropy)((vec *)dz, (const vec *)z, labels, real, p->classes, samples, p->samples, blocks);
#endif
    return NAME(cross_entropy)(dz, z, labels, p->classes, samples, p->samples, p->lanes);
}

/* Compute the gradients g [n, g_row] and losses [n] of n models: at parameters x, n pointers, with buffers [n, their
 * number], which change as in training, of inputs [n, samples, numbers] and labels [n, samples]. masks: of dropout, [n,
 * for each such layer: samples, its numbers]. arena, gradients: for p->arena numbers for each part of p->together samples,
 * with scratch behind the former and a spare activation behind the latter. Return 0, or 1 if a label is none of the
 * classes. */
TARGET int NAME(gradients)(const Program *p, long n, REAL *g, long g_row, REAL *losses, REAL *buffers,
                           const REAL *const *x, const REAL *inputs, const int64_t *labels, const uint8_t *masks,
                           STORED *arena, STORED *gradients)
{
    const long blocks = p->lanes / LANES, max_parts = (p->together + p->part - 1) / p->part;
    STORED *scratch = arena + max_parts * p->arena, *spare = gradients + max_parts * p->arena;
    truth real[max_parts * blocks];
    prefer_large_pages(arena, max_parts * p->arena * sizeof(STORED));
    prefer_large_pages(gradients, max_parts * p->arena * sizeof(STORED));
    for (long i = 0; i < n; i++, g += g_row, buffers += p->buffers, masks += p->masks * p->samples) {
        losses[i] = 0;
        memset(g, 0, g_row * sizeof(REAL));
        for (long begin = 0; begin < p->samples; begin += p->together) {
            const long samples = p->samples - begin < p->together ? p->samples - begin : p->together;
            const long first = i * p->samples + begin, parts = (samples + p->part - 1) / p->part;
            const NAME(Batch) a = {parts, p->arena / LANES, blocks, samples, real};
            for (long part = 0; part < parts; part++) {
                const long left = samples - part * p->part;
                for (long b = 0; b < blocks; b++)
                    EACH(l, LANES) real[part * blocks + b][l] = b * LANES + l < p->part && b * LANES + l < left ? -1 : 0;
                NAME(enter)(arena + part * p->arena + p->input, inputs + (first + part * p->part) * p->input_numbers,
                            left < p->part ? left : p->part, p->input_numbers, p->lanes);
            }
            for (const Step *s = p->steps; s < p->steps + p->count; s++)
                NAME(forward_parts)(p, s, arena, x[i], buffers, a, 1, masks, begin, (vec *)scratch);
            for (long part = 0; part < parts; part++) {
                const long left = samples - part * p->part, count = left < p->part ? left : p->part;
                const int64_t *of_part = labels + first + part * p->part;
                STORED *dz = gradients + part * p->arena + p->output, *z = arena + part * p->arena + p->output;
                const double loss = NAME(entropy)(p, dz, z, of_part, real + part * blocks, count, blocks);
                if (loss < 0)
                    return 1;
                losses[i] += loss;
            }
            for (const Step *s = p->steps + p->count; s-- > p->steps;)
                NAME(backward_parts)(p, s, arena, gradients, spare, x[i], g, a, (vec *)scratch);
        }
    }
    return 0;
}

#if !MIXED
/* Compute the logits z [n, count, classes] of n models in evaluation, of the same inputs [count, numbers]. */
TARGET void NAME(logits)(const Program *p, long n, REAL *z, REAL *buffers, const REAL *const *x, const REAL *inputs,
                         long count, REAL *arena)
{
    const long blocks = p->lanes / LANES, max_parts = (p->together + p->part - 1) / p->part;
    vec *scratch = (vec *)(arena + max_parts * p->arena);
    for (long i = 0; i < n; i++, z += count * p->classes)
        for (long begin = 0; begin < count; begin += p->together) {
            const long samples = count - begin < p->together ? count - begin : p->together;
            const NAME(Batch) a = {(samples + p->part - 1) / p->part, p->arena / LANES, blocks, samples, NULL};
            for (long part = 0; part < a.parts; part++)
                NAME(enter)(arena + part * p->arena + p->input, inputs + (begin + part * p->part) * p->input_numbers,
                            samples - part * p->part, p->input_numbers, p->lanes);
            for (const Step *s = p->steps; s < p->steps + p->count; s++)
                NAME(forward_parts)(p, s, arena, x[i], buffers + i * p->buffers, a, 0, NULL, 0, scratch);
            for (long s = 0; s < samples; s++)
                for (long c = 0; c < p->classes; c++)
                    z[(begin + s) * p->classes + c] =
                        arena[s / p->part * p->arena + p->output + c * p->lanes + s % p->part];
        }
}
#endif
