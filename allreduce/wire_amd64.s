#include "textflag.h"

// constants sets each lane of Y13 to the quiet bit of a NaN, of Y14 to 1 and of Y15 to 0x7fff.
#define constants \
	MOVL         $0x00400000, AX; \
	VMOVD        AX, X13; \
	VPBROADCASTD X13, Y13; \
	MOVL         $1, AX; \
	VMOVD        AX, X14; \
	VPBROADCASTD X14, Y14; \
	MOVL         $0x7fff, AX; \
	VMOVD        AX, X15; \
	VPBROADCASTD X15, Y15

// round sets out to the bfloat16s nearest to the floats x, in the lower 16 bits; it overwrites t.
// It adds 0x7fff, and 1 if the upper half is odd, which carries into the upper half where x rounds
// up. That could turn a NaN into an infinity, so a NaN only gets its quiet bit.
#define round(x, out, t) \
	VPSRLD    $16, x, out; \
	VPAND     Y14, out, out; \
	VPADDD    Y15, out, out; \
	VPADDD    x, out, out; \
	VPOR      Y13, x, t; \
	VCMPPS    $3, x, x, Y12; \
	VBLENDVPS Y12, t, out, out; \
	VPSRLD    $16, out, out

// lose sets x to its rounding error x-w, or to 0 where that is not finite; it overwrites w.
#define lose(x, w) \
	VSUBPS w, x, x; \
	VSUBPS x, x, w; \
	VCMPPS $7, w, w, w; \
	VANDPS w, x, x

// func encodeBFloat16AVX2(dst *byte, src *float32, n int)
TEXT ·encodeBFloat16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	constants

loop:
	VMOVUPS   (SI), Y0
	VMOVUPS   32(SI), Y1
	round(Y0, Y2, Y4)
	round(Y1, Y3, Y5)
	VPACKUSDW Y3, Y2, Y2
	VPERMQ    $0xd8, Y2, Y2
	VMOVDQU   Y2, (DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func encodeFeedbackBFloat16AVX2(dst *byte, src, residual *float32, n int)
TEXT ·encodeFeedbackBFloat16AVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ residual+16(FP), DX
	MOVQ n+24(FP), CX
	constants

loop:
	VMOVUPS   (SI), Y0
	VMOVUPS   32(SI), Y1
	VADDPS    (DX), Y0, Y0
	VADDPS    32(DX), Y1, Y1
	round(Y0, Y2, Y4)
	round(Y1, Y3, Y5)
	VPACKUSDW Y3, Y2, Y6
	VPERMQ    $0xd8, Y6, Y6
	VMOVDQU   Y6, (DI)
	VPSLLD    $16, Y2, Y2
	VPSLLD    $16, Y3, Y3
	lose(Y0, Y2)
	lose(Y1, Y3)
	VMOVUPS   Y0, (DX)
	VMOVUPS   Y1, 32(DX)
	ADDQ      $64, SI
	ADDQ      $64, DX
	ADDQ      $32, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// constants512 sets Z13 to Z16 to round512's constants.
#define constants512 \
	MOVL         $0x00400000, AX; \
	VPBROADCASTD AX, Z13; \
	MOVL         $0x10000, AX; \
	VPBROADCASTD AX, Z14; \
	MOVL         $0x7fff, AX; \
	VPBROADCASTD AX, Z15; \
	MOVL         $0x8000, AX; \
	VPBROADCASTD AX, Z16

// round512 is round in AVX-512.
#define round512(x, out) \
	VPTESTMD x, Z14, K1; \
	VCMPPS   $3, x, x, K2; \
	VPADDD   Z15, x, out; \
	VPADDD   Z16, x, K1, out; \
	VPORD    Z13, x, K2, out; \
	VPSRLD   $16, out, out

// func encodeBFloat16AVX512(dst *byte, src *float32, n int)
TEXT ·encodeBFloat16AVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	constants512

loop:
	VMOVUPS (SI), Z0
	round512(Z0, Z1)
	VPMOVDW Z1, Y1
	VMOVDQU Y1, (DI)
	ADDQ    $64, SI
	ADDQ    $32, DI
	SUBQ    $16, CX
	JNZ     loop
	VZEROUPPER
	RET

// func encodeFeedbackBFloat16AVX512(dst *byte, src, residual *float32, n int)
TEXT ·encodeFeedbackBFloat16AVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ residual+16(FP), DX
	MOVQ n+24(FP), CX
	constants512

loop:
	VMOVUPS  (SI), Z0
	VADDPS   (DX), Z0, Z0
	round512(Z0, Z1)
	VPMOVDW  Z1, Y2
	VMOVDQU  Y2, (DI)
	VPSLLD   $16, Z1, Z1
	VSUBPS   Z1, Z0, Z0
	VSUBPS   Z0, Z0, Z1
	VCMPPS   $7, Z1, Z1, K1
	VMOVUPS.Z Z0, K1, Z0
	VMOVUPS  Z0, (DX)
	ADDQ     $64, SI
	ADDQ     $64, DX
	ADDQ     $32, DI
	SUBQ     $16, CX
	JNZ      loop
	VZEROUPPER
	RET

// func decodeBFloat16AVX2(dst *float32, src *byte, n int)
TEXT ·decodeBFloat16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD    $16, Y0, Y0
	VPSLLD    $16, Y1, Y1
	VMOVDQU   Y0, (DI)
	VMOVDQU   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func addDecodedBFloat16AVX2(dst *float32, src *byte, n int)
TEXT ·addDecodedBFloat16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD    $16, Y0, Y0
	VPSLLD    $16, Y1, Y1
	VADDPS    (DI), Y0, Y0
	VADDPS    32(DI), Y1, Y1
	VMOVUPS   Y0, (DI)
	VMOVUPS   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func encodeFloat16AVX2(dst *byte, src *float32, n int)
TEXT ·encodeFloat16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VMOVUPS   (SI), Y0
	VMOVUPS   32(SI), Y1
	VCVTPS2PH $0, Y0, (DI)
	VCVTPS2PH $0, Y1, 16(DI)
	ADDQ      $64, SI
	ADDQ      $32, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func encodeFeedbackFloat16AVX2(dst *byte, src, residual *float32, n int)
TEXT ·encodeFeedbackFloat16AVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ residual+16(FP), DX
	MOVQ n+24(FP), CX

loop:
	VMOVUPS   (SI), Y0
	VMOVUPS   32(SI), Y1
	VADDPS    (DX), Y0, Y0
	VADDPS    32(DX), Y1, Y1
	VCVTPS2PH $0, Y0, X2
	VCVTPS2PH $0, Y1, X3
	VMOVDQU   X2, (DI)
	VMOVDQU   X3, 16(DI)
	VCVTPH2PS X2, Y2
	VCVTPH2PS X3, Y3
	lose(Y0, Y2)
	lose(Y1, Y3)
	VMOVUPS   Y0, (DX)
	VMOVUPS   Y1, 32(DX)
	ADDQ      $64, SI
	ADDQ      $64, DX
	ADDQ      $32, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func decodeFloat16AVX2(dst *float32, src *byte, n int)
TEXT ·decodeFloat16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VMOVUPS   Y0, (DI)
	VMOVUPS   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func addDecodedFloat16AVX2(dst *float32, src *byte, n int)
TEXT ·addDecodedFloat16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX

loop:
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VADDPS    (DI), Y0, Y0
	VADDPS    32(DI), Y1, Y1
	VMOVUPS   Y0, (DI)
	VMOVUPS   Y1, 32(DI)
	ADDQ      $32, SI
	ADDQ      $64, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func addEncodeBFloat16AVX512(out *byte, x *float32, src *byte, n int)
TEXT ·addEncodeBFloat16AVX512(SB), NOSPLIT, $0-32
	MOVQ out+0(FP), DI
	MOVQ x+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	constants512

loop:
	VPMOVZXWD (SI), Z0
	VPSLLD    $16, Z0, Z0
	VADDPS    (DX), Z0, Z0
	round512(Z0, Z1)
	VPMOVDW   Z1, Y2
	VMOVDQU   Y2, (DI)
	ADDQ      $32, SI
	ADDQ      $64, DX
	ADDQ      $32, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func addSettleBFloat16AVX512(out *byte, x *float32, src *byte, n int)
TEXT ·addSettleBFloat16AVX512(SB), NOSPLIT, $0-32
	MOVQ out+0(FP), DI
	MOVQ x+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX
	constants512

loop:
	VPMOVZXWD (SI), Z0
	VPSLLD    $16, Z0, Z0
	VADDPS    (DX), Z0, Z0
	round512(Z0, Z1)
	VPMOVDW   Z1, Y2
	VMOVDQU   Y2, (DI)
	VPSLLD    $16, Z1, Z1
	VMOVUPS   Z1, (DX)
	ADDQ      $32, SI
	ADDQ      $64, DX
	ADDQ      $32, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func addEncodeFloat16AVX2(out *byte, x *float32, src *byte, n int)
TEXT ·addEncodeFloat16AVX2(SB), NOSPLIT, $0-32
	MOVQ out+0(FP), DI
	MOVQ x+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX

loop:
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VADDPS    (DX), Y0, Y0
	VADDPS    32(DX), Y1, Y1
	VCVTPS2PH $0, Y0, X2
	VCVTPS2PH $0, Y1, X3
	VMOVDQU   X2, (DI)
	VMOVDQU   X3, 16(DI)
	ADDQ      $32, SI
	ADDQ      $64, DX
	ADDQ      $32, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET

// func addSettleFloat16AVX2(out *byte, x *float32, src *byte, n int)
TEXT ·addSettleFloat16AVX2(SB), NOSPLIT, $0-32
	MOVQ out+0(FP), DI
	MOVQ x+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ n+24(FP), CX

loop:
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VADDPS    (DX), Y0, Y0
	VADDPS    32(DX), Y1, Y1
	VCVTPS2PH $0, Y0, X2
	VCVTPS2PH $0, Y1, X3
	VMOVDQU   X2, (DI)
	VMOVDQU   X3, 16(DI)
	VCVTPH2PS X2, Y2
	VCVTPH2PS X3, Y3
	VMOVUPS   Y2, (DX)
	VMOVUPS   Y3, 32(DX)
	ADDQ      $32, SI
	ADDQ      $64, DX
	ADDQ      $32, DI
	SUBQ      $16, CX
	JNZ       loop
	VZEROUPPER
	RET
