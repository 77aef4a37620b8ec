// Layer normalisation of rows in bf16, and its gradients: one warp a row, every number read once and written once.
//
// WIDTH is set by whoever compiles this: the length of a row, a multiple of 8.

constexpr int LANES = 32;
constexpr int WARPS = 4;                            // of a block
constexpr int PIECES = WIDTH / PIECE;               // of a row
constexpr int MINE = (PIECES + LANES - 1) / LANES;  // of a lane

__device__ __forceinline__ float over_lanes(float value) {
    for (int away = LANES / 2; away > 0; away /= 2) value += __shfl_xor_sync(0xffffffffu, value, away);
    return value;
}

extern "C" __global__ void __launch_bounds__(LANES * WARPS)
forward(const uint4* x, const uint4* scale, const uint4* shift, uint4* out, float* mean, float* rstd, int rows,
        double eps) {
    const int lane = threadIdx.x % LANES, stride = gridDim.x * WARPS;
    for (int row = blockIdx.x * WARPS + threadIdx.x / LANES; row < rows; row += stride) {
        const uint4* from = x + (long long)row * PIECES;
        uint4 kept[MINE];
        float values[8], total = 0.0f, squares = 0.0f;
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int at = lane + i * LANES;
            if (at < PIECES) kept[i] = from[at];
        }
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            if (lane + i * LANES < PIECES) {
                unpacked(kept[i], values);
                #pragma unroll
                for (int j = 0; j < 8; j++) total += values[j];
            }
        }
        const float middle = over_lanes(total) / WIDTH;
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            if (lane + i * LANES < PIECES) {
                unpacked(kept[i], values);
                #pragma unroll
                for (int j = 0; j < 8; j++) squares += (values[j] - middle) * (values[j] - middle);
            }
        }
        const float inverse = rsqrtf(over_lanes(squares) / WIDTH + (float)eps);
        if (lane == 0) { mean[row] = middle; rstd[row] = inverse; }
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int at = lane + i * LANES;
            if (at < PIECES) {
                float by[8], plus[8];
                unpacked(kept[i], values); unpacked(scale[at], by); unpacked(shift[at], plus);
                #pragma unroll
                for (int j = 0; j < 8; j++) values[j] = (values[j] - middle) * inverse * by[j] + plus[j];
                out[(long long)row * PIECES + at] = packed(values);
            }
        }
    }
}

// Gradients of what is added up over rows, by all warps of a block: (blocks, WIDTH), one row for each block.
__device__ __forceinline__ void over_warps(const float* mine, float (*shared)[WIDTH], float* out) {
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    __syncthreads();  // others may still read what was shared before
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int at = lane + i * LANES;
        if (at < PIECES) {
            #pragma unroll
            for (int j = 0; j < 8; j++) shared[warp][at * 8 + j] = mine[i * 8 + j];
        }
    }
    __syncthreads();
    for (int column = threadIdx.x; column < WIDTH; column += LANES * WARPS) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) sum += shared[w][column];
        out[(long long)blockIdx.x * WIDTH + column] = sum;
    }
}

// What goes around the normalisation, as in x + f(norm(x)), comes back as a gradient of x too: `around`, where
// `goes_around`. of_sum: of_x over rows, which is the gradient of whatever bias was added to x.
extern "C" __global__ void __launch_bounds__(LANES * WARPS)
backward(const uint4* slope, const uint4* around, const uint4* x, const float* mean, const float* rstd,
         const uint4* scale, uint4* of_x, float* of_scale, float* of_shift, float* of_sum, int rows, int goes_around) {
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, stride = gridDim.x * WARPS;
    float sum_scale[MINE * 8], sum_shift[MINE * 8], sum_x[MINE * 8];
    uint4 by[MINE];
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int at = lane + i * LANES;
        by[i] = at < PIECES ? scale[at] : make_uint4(0, 0, 0, 0);
        #pragma unroll
        for (int j = 0; j < 8; j++) sum_scale[i * 8 + j] = sum_shift[i * 8 + j] = sum_x[i * 8 + j] = 0.0f;
    }
    for (int row = blockIdx.x * WARPS + warp; row < rows; row += stride) {
        const long long first = (long long)row * PIECES;
        uint4 g[MINE], v[MINE], past[MINE];
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int at = lane + i * LANES;
            g[i] = at < PIECES ? slope[first + at] : make_uint4(0, 0, 0, 0);
            v[i] = at < PIECES ? x[first + at] : make_uint4(0, 0, 0, 0);
            past[i] = goes_around && at < PIECES ? around[first + at] : make_uint4(0, 0, 0, 0);
        }
        const float middle = mean[row], inverse = rstd[row];
        float along = 0.0f, across = 0.0f, a[8], b[8], c[8];
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            unpacked(g[i], a); unpacked(v[i], b); unpacked(by[i], c);
            #pragma unroll
            for (int j = 0; j < 8; j++) {
                const float unit = (b[j] - middle) * inverse;
                sum_shift[i * 8 + j] += a[j];
                sum_scale[i * 8 + j] += a[j] * unit;
                along += a[j] * c[j];
                across += a[j] * c[j] * unit;
            }
        }
        along = over_lanes(along) / WIDTH;
        across = over_lanes(across) / WIDTH;
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int at = lane + i * LANES;
            if (at < PIECES) {
                float d[8];
                unpacked(g[i], a); unpacked(v[i], b); unpacked(by[i], c); unpacked(past[i], d);
                #pragma unroll
                for (int j = 0; j < 8; j++) {
                    a[j] = d[j] + inverse * (a[j] * c[j] - along - (b[j] - middle) * inverse * across);
                    sum_x[i * 8 + j] += a[j];
                }
                of_x[first + at] = packed(a);
            }
        }
    }
    __shared__ float shared[WARPS][WIDTH];
    over_warps(sum_scale, shared, of_scale);
    over_warps(sum_shift, shared, of_shift);
    over_warps(sum_x, shared, of_sum);
}
