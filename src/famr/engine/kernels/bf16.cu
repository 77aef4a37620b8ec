// Eight numbers in bf16 are read and written at once, as 16 bytes, and are float32 in between.

typedef unsigned int word;  // two bf16

constexpr int PIECE = 8;

__device__ __forceinline__ float low(word both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high(word both) { return __uint_as_float(both & 0xffff0000u); }

__device__ __forceinline__ word pair(float first, float second) {  // each to the nearest bf16, to the even one of two
    word both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

__device__ __forceinline__ void unpacked(const uint4 piece, float* out) {
    out[0] = low(piece.x); out[1] = high(piece.x); out[2] = low(piece.y); out[3] = high(piece.y);
    out[4] = low(piece.z); out[5] = high(piece.z); out[6] = low(piece.w); out[7] = high(piece.w);
}

__device__ __forceinline__ uint4 packed(const float* in) {
    return make_uint4(pair(in[0], in[1]), pair(in[2], in[3]), pair(in[4], in[5]), pair(in[6], in[7]));
}

