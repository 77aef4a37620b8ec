// x·Φ(x) of numbers in bf16, and its gradient. Both need e^(−x²/2), which is computed once.
//
// Φ(−|x|) = ½·(a₁t + … + a₅t⁵)·e^(−x²/2), t = 1 / (1 + p·|x|/√2), to 1.5e-7 [Abramowitz and Stegun, 7.1.26].

__device__ __forceinline__ float bell(float x) { return __expf(-0.5f * x * x); }

__device__ __forceinline__ float below(float x, float bell_of_x) {  // Φ(x)
    const float t = __fdividef(1.0f, 1.0f + 0.3275911f * 0.70710678f * fabsf(x));
    const float sum = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float tail = 0.5f * sum * bell_of_x;
    return x < 0.0f ? tail : 1.0f - tail;
}

extern "C" __global__ void forward(const uint4* x, uint4* out, int pieces) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= pieces) return;
    float values[PIECE];
    unpacked(x[at], values);
    #pragma unroll
    for (int j = 0; j < PIECE; j++) values[j] *= below(values[j], bell(values[j]));
    out[at] = packed(values);
}

// A block takes some columns of some rows, one row after the other. What it hands on is also the gradient of whatever
// was added to x: its sum over the block's rows, column by column, goes to the block's own place in `sums`.
extern "C" __global__ void backward(
    const uint4* slope, const uint4* x, uint4* of_x, float* sums, int pieces, int rows, int rows_a_block
) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= pieces) return;
    const int first = blockIdx.y * rows_a_block, end = min(rows, first + rows_a_block);
    float total[PIECE] = {};
    #pragma unroll 4
    for (int row = first; row < end; row++) {
        const int at = row * pieces + column;
        float values[PIECE], slopes[PIECE];
        unpacked(x[at], values);
        unpacked(slope[at], slopes);
        #pragma unroll
        for (int j = 0; j < PIECE; j++) {
            const float v = values[j], height = bell(v);
            slopes[j] *= below(v, height) + v * 0.39894228f * height;
            total[j] += slopes[j];
        }
        of_x[at] = packed(slopes);
    }
    float4* mine = reinterpret_cast<float4*>(sums) + 2 * (blockIdx.y * pieces + column);
    mine[0] = make_float4(total[0], total[1], total[2], total[3]);
    mine[1] = make_float4(total[4], total[5], total[6], total[7]);
}
