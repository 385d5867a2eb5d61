/* A network as a list of steps, made by dsgd/gradients/program.py; dsgd/gradients/compiled.py has the same fields, in
 * the same order.
 *
 * Activations lie in one arena, their gradients in a second one at the same places. An activation is
 * [channels, pixels, lanes]: an instruction serves as many samples as a vector has lanes, and the last vectors' lanes
 * that are left over repeat a sample that counts nowhere. */

#include <stdint.h>

enum { CONVOLVE, NORM, GROUP_NORM, ADD, PICK, AVERAGE, LARGEST, ACTIVATE };

/* The functions of ACTIVATE. */
enum { GELU, GELU_TANH, SILU, SIGMOID, TANH, ELU, LEAKY_RELU };

typedef struct {
    int64_t kind;
    int64_t rectify;                        /* a ReLU follows */
    int64_t from, other, to;                /* activations: places in the arena. other: of ADD */
    int64_t gives, adds, other_adds;        /* whether `from` has a gradient; whether others have given to it before */
    int64_t inputs, outputs;                /* channels */
    int64_t from_pixels, to_pixels, taps;   /* a tap: one place of a kernel */
    int64_t weight, bias;                   /* places in the vector of parameters, -1 of none */
    int64_t mean, variance;                 /* running statistics: places in the vector of buffers, -1 of none */
    int64_t groups;                         /* of CONVOLVE and GROUP_NORM */
    int64_t function;                       /* of ACTIVATE */
    int64_t tiles;                          /* of CONVOLVE, whether by winograd.h, and then: */
    int64_t rows, columns, padding;         /* of `from`, and the zeros on each side */
    int64_t kept;                           /* of norms, place in the arena: mean and rate of each channel or group */
    const int32_t *window;                  /* [taps, to_pixels]: the pixel of `from` under a tap, -1 outside */
    const int32_t *back;                    /* [taps, from_pixels]: the pixel of `to` that has it there, -1 of none */
    const double *divisor;                  /* of AVERAGE, [to_pixels]: a sum is divided by it */
    double momentum, eps;                   /* of norms */
    double slope;                           /* of ACTIVATE: of LEAKY_RELU and ELU, below 0 */
} Step;

typedef struct {
    const Step *steps;
    int64_t count;
    int64_t buffers;                        /* numbers in a vector of buffers */
    int64_t input, input_numbers;           /* place of the input in the arena, and its numbers for one sample */
    int64_t output, classes;                /* place of the logits */
    int64_t samples;                        /* in a batch of training */
    int64_t arena;                          /* numbers in an arena; behind it is room for what layers need meanwhile */
} Program;
