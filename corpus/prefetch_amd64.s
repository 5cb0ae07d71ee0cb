#include "textflag.h"

// func prefetch(items unsafe.Pointer, shift int, index *int32, count int)
TEXT ·prefetch(SB), NOSPLIT, $0-32
	MOVQ items+0(FP), DI
	MOVQ shift+8(FP), CX
	MOVQ index+16(FP), SI
	MOVQ count+24(FP), BX
	LEAQ (SI)(BX*4), BX
	JMP  test

next:
	MOVL       (SI), AX
	SHLQ       CX, AX
	PREFETCHT0 (DI)(AX*1)
	ADDQ       $4, SI

test:
	CMPQ SI, BX
	JB   next
	RET
