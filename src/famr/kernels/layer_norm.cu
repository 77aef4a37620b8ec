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

// of_scale, of_shift: (blocks, WIDTH), one row for what each block has added up
extern "C" __global__ void __launch_bounds__(LANES * WARPS)
backward(const uint4* slope, const uint4* x, const float* mean, const float* rstd, const uint4* scale, uint4* of_x,
         float* of_scale, float* of_shift, int rows) {
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, stride = gridDim.x * WARPS;
    float sum_scale[MINE * 8], sum_shift[MINE * 8];
    uint4 by[MINE];
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int at = lane + i * LANES;
        by[i] = at < PIECES ? scale[at] : make_uint4(0, 0, 0, 0);
        #pragma unroll
        for (int j = 0; j < 8; j++) sum_scale[i * 8 + j] = sum_shift[i * 8 + j] = 0.0f;
    }
    for (int row = blockIdx.x * WARPS + warp; row < rows; row += stride) {
        const long long first = (long long)row * PIECES;
        uint4 g[MINE], v[MINE];
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int at = lane + i * LANES;
            g[i] = at < PIECES ? slope[first + at] : make_uint4(0, 0, 0, 0);
            v[i] = at < PIECES ? x[first + at] : make_uint4(0, 0, 0, 0);
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
                unpacked(g[i], a); unpacked(v[i], b); unpacked(by[i], c);
                #pragma unroll
                for (int j = 0; j < 8; j++) a[j] = inverse * (a[j] * c[j] - along - (b[j] - middle) * inverse * across);
                of_x[first + at] = packed(a);
            }
        }
    }
    __shared__ float shared[2][WARPS][WIDTH];
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int at = lane + i * LANES;
        if (at < PIECES) {
            #pragma unroll
            for (int j = 0; j < 8; j++) {
                shared[0][warp][at * 8 + j] = sum_scale[i * 8 + j];
                shared[1][warp][at * 8 + j] = sum_shift[i * 8 + j];
            }
        }
    }
    __syncthreads();
    for (int column = threadIdx.x; column < WIDTH; column += LANES * WARPS) {
        float one = 0.0f, other = 0.0f;
        for (int w = 0; w < WARPS; w++) { one += shared[0][w][column]; other += shared[1][w][column]; }
        of_scale[(long long)blockIdx.x * WIDTH + column] = one;
        of_shift[(long long)blockIdx.x * WIDTH + column] = other;
    }
}
