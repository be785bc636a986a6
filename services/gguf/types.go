package gguf

import "fmt"

// Type is the storage type of a tensor: the id that stands in the file.
type Type uint32

// The storage types. The holes in the numbering (4, 5, 31–33, 36–38) belong to types that were removed from the format.
const (
	F32     Type = 0
	F16     Type = 1
	Q4_0    Type = 2
	Q4_1    Type = 3
	Q5_0    Type = 6
	Q5_1    Type = 7
	Q8_0    Type = 8
	Q8_1    Type = 9
	Q2_K    Type = 10
	Q3_K    Type = 11
	Q4_K    Type = 12
	Q5_K    Type = 13
	Q6_K    Type = 14
	Q8_K    Type = 15
	IQ2_XXS Type = 16
	IQ2_XS  Type = 17
	IQ3_XXS Type = 18
	IQ1_S   Type = 19
	IQ4_NL  Type = 20
	IQ3_S   Type = 21
	IQ2_S   Type = 22
	IQ4_XS  Type = 23
	I8      Type = 24
	I16     Type = 25
	I32     Type = 26
	I64     Type = 27
	F64     Type = 28
	IQ1_M   Type = 29
	BF16    Type = 30
	TQ1_0   Type = 34
	TQ2_0   Type = 35
	MXFP4   Type = 39
	NVFP4   Type = 40
	Q1_0    Type = 41
	Q2_0    Type = 42
)

// typeInfo describes the blocks of a storage type. A zero blockBytes marks a type whose id is known but whose block
// layout is not settled among implementations; files that use it are refused rather than misread.
type typeInfo struct {
	name       string
	blockElems int64
	blockBytes int64
}

// typeTable is indexed by Type. Entries without a name are unknown or removed ids.
var typeTable = [...]typeInfo{
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2}, F64: {"F64", 1, 8},
	I8: {"I8", 1, 1}, I16: {"I16", 1, 2}, I32: {"I32", 1, 4}, I64: {"I64", 1, 8},
	Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20}, Q5_0: {"Q5_0", 32, 22}, Q5_1: {"Q5_1", 32, 24},
	Q8_0: {"Q8_0", 32, 34}, Q8_1: {"Q8_1", 32, 36},
	Q2_K: {"Q2_K", 256, 84}, Q3_K: {"Q3_K", 256, 110}, Q4_K: {"Q4_K", 256, 144},
	Q5_K: {"Q5_K", 256, 176}, Q6_K: {"Q6_K", 256, 210}, Q8_K: {"Q8_K", 256, 292},
	IQ1_S: {"IQ1_S", 256, 50}, IQ1_M: {"IQ1_M", 256, 56},
	IQ2_XXS: {"IQ2_XXS", 256, 66}, IQ2_XS: {"IQ2_XS", 256, 74}, IQ2_S: {"IQ2_S", 256, 82},
	IQ3_XXS: {"IQ3_XXS", 256, 98}, IQ3_S: {"IQ3_S", 256, 110},
	IQ4_NL: {"IQ4_NL", 32, 18}, IQ4_XS: {"IQ4_XS", 256, 136},
	TQ1_0: {"TQ1_0", 256, 54}, TQ2_0: {"TQ2_0", 256, 66},
	MXFP4: {"MXFP4", 32, 17}, NVFP4: {"NVFP4", 64, 36},
	Q1_0: {"Q1_0", 128, 18},
	// implementations disagree on 64 or 128 values a block, and a fork uses the id for a KV-cache type
	Q2_0: {"Q2_0", 0, 0},
}

// Known reports whether the id is a storage type whose block layout this package knows.
func (t Type) Known() bool { return int(t) < len(typeTable) && typeTable[t].blockBytes != 0 }

// String gives the usual name ("Q4_K"), or "type N" for an id that is not assigned.
func (t Type) String() string {
	if int(t) < len(typeTable) && typeTable[t].name != "" {
		return typeTable[t].name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Computed reports whether an engine of this build computes with tensors of the type: products with matrices of it, or
// for the vectors of norms and biases (matrix false) their values. It is what dtype_matmul says
// in native/src/core/dtype.h.
func (t Type) Computed(matrix bool) bool {
	switch t {
	case F32, F16, BF16:
		return true
	case Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS:
		return matrix
	default:
		return false
	}
}

// BlockElems is the number of values in one block (1 for plain types, 0 for types that are not Known).
func (t Type) BlockElems() int64 {
	if !t.Known() {
		return 0
	}
	return typeTable[t].blockElems
}

// BlockBytes is the size of one block in bytes (0 for types that are not Known).
func (t Type) BlockBytes() int64 {
	if !t.Known() {
		return 0
	}
	return typeTable[t].blockBytes
}
