/* Activation functions of vectors and their derivatives, to the last bits of REAL: included by kernels.c behind
 * layers.h. What is no number stays none. */

#define IS_DOUBLE (sizeof(REAL) == 8)
#define MANTISSA (IS_DOUBLE ? 52 : 23)
#define ROUNDING ((REAL)(IS_DOUBLE ? 0x1.8p52 : 0x1.8p23)) /* a number so large that adding it rounds to integers */

/* `value` where `test` is true, and `other` elsewhere. */
#define CHOOSE(test, value, other) (WHERE(test, value) + WHERE(~(test), other))

/* Return the integers nearest to x, which lie in [-1024, 1024]. */
TARGET static inline truth NAME(nearest)(vec x)
{
    const vec large = (vec){0} + ROUNDING;
    return (truth)(x + large) - (truth)large;
}

/* Return e^x - 1 to its last bits, also near 0, and set e^x = *power (1 + *tail): n = x / ln 2, rounded; power = 2^n;
 * tail is the series of e^r - 1 for what is left of x, |r| <= ln 2 / 2. x is cut off where e^x leaves the range of
 * REAL. */
TARGET static inline vec NAME(exponential)(vec x, vec *power, vec *tail)
{
    const REAL limit = IS_DOUBLE ? 708 : 87;
    const vec cut = WHERE((x < limit) & (x > -limit), x) + WHERE(x >= limit, (vec){0} + limit) - WHERE(x <= -limit, (vec){0} + limit);
    const truth n = NAME(nearest)(cut * (REAL)1.4426950408889634);
    const vec whole = (vec)(n + (truth)((vec){0} + ROUNDING)) - ROUNDING;
    const REAL high = (REAL)(IS_DOUBLE ? 6.93147180369123816490e-01 : 0.693359375);
    const REAL low = (REAL)(IS_DOUBLE ? 1.90821492927058770002e-10 : -2.12194440e-4);
    const vec left = cut - whole * high - whole * low;
    vec sum = {0};
    for (int k = IS_DOUBLE ? 13 : 7; k > 0; k--)
        sum = (sum + 1) * (left * ((REAL)1 / k));
    *power = (vec)((n + (IS_DOUBLE ? 1023 : 127)) << MANTISSA);
    *tail = sum;
    return CHOOSE(x == x, *power * sum + (*power - 1), x);
}

TARGET static inline vec NAME(exp)(vec x)
{
    vec power, tail;
    NAME(exponential)(x, &power, &tail);
    return CHOOSE(x == x, power * tail + power, x);
}

TARGET static inline vec NAME(sigmoid)(vec x)
{
    return 1 / (1 + NAME(exp)(-x));
}

/* tanh x = (e^2x - 1) / (e^2x + 1), which is 1 to the last bit from 20 on. */
TARGET static inline vec NAME(tanh)(vec x)
{
    vec power, tail;
    const vec cut = WHERE((x < 20) & (x > -20), x) + WHERE(x >= 20, (vec){0} + 20) - WHERE(x <= -20, (vec){0} + 20);
    const vec less_one = NAME(exponential)(2 * cut, &power, &tail);
    return CHOOSE(x == x, less_one / (less_one + 2), x);
}

/* erf in double precision by its Taylor series about the nearest of the points of a table (kernels.c), at most 1/16 away:
 * erf(a + h) = erf(a) + erf'(a) h sum_k c_k / (k + 1), c_0 = 1, c_1 = -2 a h,
 * c_k+1 = -2 h (a c_k + h c_k-1) / (k + 1): c_k = (-h)^k H_k(a) / k!, H_k the Hermite polynomials. size: 0 or more. */
TARGET static inline vec NAME(erf_by_table)(vec size)
{
    const vec cut = WHERE(size < 6, size) + WHERE(size >= 6, (vec){0} + 6);
    const truth place = NAME(nearest)(cut * 8);
    vec value, rate;
    EACH(l, LANES)
    {
        value[l] = (REAL)erf_at[place[l]];
        rate[l] = (REAL)erf_rate_at[place[l]];
    }
    const vec at = ((vec)(place + (truth)((vec){0} + ROUNDING)) - ROUNDING) * (REAL)0.125, h = cut - at;
    vec before = {0}, term = before + 1, sum = term;
    for (int k = 0; k < 13; k++) {
        const vec next = (at * term + h * before) * (h * ((REAL)-2 / (k + 1)));
        before = term;
        term = next;
        sum += term * ((REAL)1 / (k + 2));
    }
    return value + rate * h * sum;
}

/* Return the polynomial of degree 6 with these coefficients, of kernels.c. */
TARGET static inline vec NAME(polynomial)(const float *factor, vec x)
{
    vec sum = (vec){0} + factor[6];
    for (int k = 5; k >= 0; k--)
        sum = sum * x + factor[k];
    return sum;
}

/* erf in single precision, which is 1 to the last bit from 4 on. size: 0 or more. */
TARGET static inline vec NAME(erf_by_polynomial)(vec size)
{
    const vec cut = WHERE(size < 4, size) + WHERE(size >= 4, (vec){0} + 4);
    const vec far = 1 - NAME(exp)(NAME(polynomial)(log_erfc, cut));
    return CHOOSE(size < 1, cut * NAME(polynomial)(near_erf, cut * cut), far);
}

TARGET static inline vec NAME(erf)(vec x)
{
    const vec size = CHOOSE(x < 0, -x, x);
    const vec value = IS_DOUBLE ? NAME(erf_by_table)(size) : NAME(erf_by_polynomial)(size);
    return CHOOSE(x == x, CHOOSE(x < 0, -value, value), x);
}

#define ROOT_HALF ((REAL)0.70710678118654752440)
#define NORMAL_DENSITY ((REAL)0.39894228040143267794) /* 1 / sqrt(2 pi) */
#define GELU_INNER ((REAL)0.79788456080286535588)     /* sqrt(2 / pi) */
#define GELU_CUBIC ((REAL)0.044715)

/* Return n = e^2x + 2 e^x, with which tanh(softplus(x)) = n / (n + 2); it is 1 to the last bit from x = 20 on. */
TARGET static inline vec NAME(mish_ratio)(vec x)
{
    const vec power = NAME(exp)(CHOOSE(x >= 20, (vec){0} + 20, x));
    return power * (power + 2);
}

/* Return log(1 + x) for x in [0, 1], by the series of 2 artanh(z), z = x / (2 + x) <= 1 / 3. */
TARGET static inline vec NAME(log_one_more)(vec x)
{
    const vec z = x / (2 + x), square = z * z;
    vec sum = {0};
    for (int k = IS_DOUBLE ? 16 : 8; k >= 0; k--)
        sum = sum * square + (REAL)1 / (2 * k + 1);
    return 2 * z * sum;
}

/* Return f(x), of the functions of program.h. slope: of LEAKY_RELU and ELU, below 0; of SCALE and SHIFT, their number. */
TARGET static inline vec NAME(function)(long f, vec x, REAL slope)
{
    switch (f) {
    case GELU:
        return x * (REAL)0.5 * (1 + NAME(erf)(x * ROOT_HALF));
    case GELU_TANH:
        return x * (REAL)0.5 * (1 + NAME(tanh)(GELU_INNER * (x + GELU_CUBIC * x * x * x)));
    case SILU:
        return x * NAME(sigmoid)(x);
    case SIGMOID:
        return NAME(sigmoid)(x);
    case TANH:
        return NAME(tanh)(x);
    case ELU: {
        vec power, tail;
        return CHOOSE(x <= 0, slope * NAME(exponential)(x, &power, &tail), x);
    }
    case RELU6:
        return CHOOSE(x <= 0, (vec){0}, CHOOSE(x >= 6, (vec){0} + 6, x));
    case HARDSIGMOID:
        return CHOOSE(x <= -3, (vec){0}, CHOOSE(x >= 3, (vec){0} + 1, (x + 3) / 6));
    case HARDSWISH:
        return CHOOSE(x <= -3, (vec){0}, CHOOSE(x >= 3, x, x * (x + 3) / 6));
    case MISH: {
        const vec n = NAME(mish_ratio)(x);
        return x * (n / (n + 2));
    }
    case SOFTPLUS:
        return CHOOSE(x > 20, x, WHERE(x > 0, x) + NAME(log_one_more)(NAME(exp)(CHOOSE(x > 0, -x, x))));
    case SCALE:
        return slope * x;
    case SHIFT:
        return x + slope;
    case RECIPROCAL:
        return 1 / x;
    default: /* LEAKY_RELU */
        return CHOOSE(x <= 0, slope * x, x);
    }
}

/* Return f'(x); y = f(x). */
TARGET static inline vec NAME(derivative)(long f, vec x, vec y, REAL slope)
{
    switch (f) {
    case GELU: { /* y / x is the distribution function, which is 1 / 2 near 0 */
        const truth near = x * x < (REAL)1e-34;
        return CHOOSE(near, (vec){0} + (REAL)0.5, y / CHOOSE(near, (vec){0} + 1, x)) +
               x * NORMAL_DENSITY * NAME(exp)(x * x * (REAL)-0.5);
    }
    case GELU_TANH: {
        const vec t = NAME(tanh)(GELU_INNER * (x + GELU_CUBIC * x * x * x));
        return (REAL)0.5 * (1 + t + x * (1 - t * t) * GELU_INNER * (1 + 3 * GELU_CUBIC * x * x));
    }
    case SILU: {
        const vec s = NAME(sigmoid)(x);
        return s * (1 + x * (1 - s));
    }
    case SIGMOID:
        return y * (1 - y);
    case TANH:
        return 1 - y * y;
    case ELU:
        return CHOOSE(x <= 0, slope * NAME(exp)(x), (vec){0} + 1);
    case RELU6:
        return WHERE((x > 0) & (x < 6), (vec){0} + 1);
    case HARDSIGMOID:
        return WHERE((x > -3) & (x < 3), (vec){0} + 1 / 6.0f); /* a float's, as torch has it for doubles as well */
    case HARDSWISH:
        return CHOOSE(x > 3, (vec){0} + 1, WHERE(x >= -3, x / 3 + (REAL)0.5));
    case MISH: { /* with t = tanh(softplus(x)): t + x (1 - t^2) sigmoid(x), 1 - t = 2 / (n + 2) */
        const vec n = NAME(mish_ratio)(x), t = n / (n + 2);
        return t + x * (2 / (n + 2)) * (1 + t) * NAME(sigmoid)(x);
    }
    case SOFTPLUS:
        return CHOOSE(x > 20, (vec){0} + 1, NAME(sigmoid)(x));
    case SCALE:
        return (vec){0} + slope;
    case SHIFT:
        return (vec){0} + 1;
    case RECIPROCAL:
        return -y * y;
    default:
        return CHOOSE(x <= 0, (vec){0} + slope, (vec){0} + 1);
    }
}

#undef IS_DOUBLE
#undef MANTISSA
#undef ROUNDING
