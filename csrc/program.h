/* A network as a list of steps, made by dsgd/gradients/program.py; dsgd/gradients/compiled.py has the same fields, in
 * the same order.
 *
 * Activations lie in one arena, their gradients in a second one at the same places. An activation is
 * [channels, pixels, lanes]: an instruction serves as many samples as a vector has lanes, and the last vectors' lanes
 * that are left over repeat a sample that counts nowhere. Of sequences tokens are in the lanes (sequence.h): "sample"
 * below is then a token, except where tokens are spoken of. */

#include <stdint.h>

enum { CONVOLVE, NORM, GROUP_NORM, ADD, MULTIPLY, GATHER, AVERAGE_POOL, MAX_POOL, ACTIVATE, LINEAR, DROPOUT, FIXED, EMBED, OFFSET, ATTEND };

/* The functions of ACTIVATE. */
enum { GELU, GELU_TANH, SILU, SIGMOID, TANH, ELU, RELU6, HARDSIGMOID, HARDSWISH, MISH, SOFTPLUS, SCALE, SHIFT, RECIPROCAL, LEAKY_RELU };

typedef struct {
    int64_t kind;
    int64_t rectify;                        /* a ReLU follows */
    int64_t from, other, third, to;         /* activations: places in the arena. other: of ADD, MULTIPLY. ATTEND: q, k, v */
    int64_t sums;                           /* of NORM and GROUP_NORM: `other` is added behind it */
    int64_t has_gradient;                   /* whether `from` has a gradient */
    int64_t adds, other_adds, third_adds;   /* whether others have given to one before */
    int64_t inputs, outputs;                /* channels */
    int64_t from_pixels, to_pixels, taps;   /* a tap: one place of a kernel */
    int64_t weight, bias;                   /* places in the vector of parameters, -1 of none */
    int64_t mean, variance;                 /* running statistics: places in the vector of buffers, -1 of none. FIXED:
                                               mean is the buffer that it reads */
    int64_t groups;                         /* of CONVOLVE and GROUP_NORM; the heads of ATTEND */
    int64_t function;                       /* of ACTIVATE */
    int64_t tiles;                          /* of CONVOLVE, whether by winograd.h, and then: */
    int64_t rows, columns, padding;         /* of `from`, and the zeros on each side. rows: also of a table,
                                               and the numbers of `other` */
    int64_t kept;                           /* place in the arena: mean and rate of each channel or group; of DROPOUT, factors */
    int64_t mask;                           /* of DROPOUT: numbers of the masks before its own, for one sample */
    int64_t causal;                         /* of ATTEND: a token attends to none behind it */
    const int32_t *window;                  /* [taps, to_pixels]: the pixel of `from` under a tap, -1 outside. OFFSET:
                                               [tokens], rows of the table. ADD, MULTIPLY: [outputs],
                                               places in `other`; NULL: it has the shape of `from` */
    const int32_t *back;                    /* [taps, from_pixels]: the pixel of `to` that has it there, -1 of none */
    const int32_t *route, *route_back;      /* of CONVOLVE in bf16 (amx.h), of it and of the gradient of `from` */
    const double *divisor;                  /* of AVERAGE_POOL, [to_pixels]: a sum is divided by it */
    double momentum, eps;                   /* of norms */
    double slope;                           /* of LEAKY_RELU and ELU, below 0; the factor of SCALE, DROPOUT and
                                               ATTEND, and of `other` in ADD; what SHIFT adds */
} Step;

typedef struct {
    const Step *steps;
    int64_t count;
    int64_t buffers;                        /* numbers in a vector of buffers */
    int64_t input, input_numbers;           /* place of the input in the arena, and its numbers for one sample */
    int64_t output, classes;                /* place of the logits */
    int64_t tokens;                         /* in a sample, 0 unless it is a sequence: then all else is of tokens */
    int64_t samples;                        /* in a batch of training */
    int64_t together, part;                 /* samples that go through all steps together, and through a step's kernel */
    int64_t lanes;                          /* for a part */
    int64_t masks;                          /* numbers in the masks of dropout, for one sample */
    int64_t arena;                          /* numbers in an arena for one part; behind those of all parts that go together
                                               is room for what layers need meanwhile, or for a spare gradient */
} Program;
