/* Steps of SGD in one pass over memory, with the bits of torch's separate operations: included by kernels.c. */

/* Update v = momentum v + g, and x = x + by_gradient g + by_velocity v: a product with a factor of x is not rounded before
 * it is added, the product with the momentum is. */
ROUNDED TARGET void NAME(sgd)(REAL *restrict x, const REAL *restrict g, REAL *restrict v, long n, REAL momentum,
                              REAL by_gradient, REAL by_velocity)
{
    for (long i = 0; i < n; i++) {
        const REAL kept = v[i] * momentum, moved = kept + g[i];
        v[i] = moved;
        x[i] = FUSED(moved, by_velocity, by_gradient ? FUSED(g[i], by_gradient, x[i]) : x[i]);
    }
}
