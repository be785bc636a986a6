package native

import "unsafe"

// Structs of native/include/tandem/engine.h, laid out by hand. The tags are the C names; TestLayout compares sizes and
// offsets with those of a C compiler. Pointers are unsafe.Pointer, so that the collector sees what they point to.

const abiVersion = 4

type cOpenOptions struct {
	StructSize     uint32         `c:"struct_size"`
	Role           uint32         `c:"role"`
	ModelPath      unsafe.Pointer `c:"model_path"`
	TablesPath     unsafe.Pointer `c:"tables_path"`
	Device         unsafe.Pointer `c:"device"`
	MemoryCapBytes uint64         `c:"memory_cap_bytes"`
	Threads        int32          `c:"threads"`
	MaxSequences   int32          `c:"max_sequences"`
	MaxContext     int32          `c:"max_context"`
	MaxTreeRows    int32          `c:"max_tree_rows"`
	MaxBatchRows   int32          `c:"max_batch_rows"`
	KVTypeK        int32          `c:"kv_type_k"`
	KVTypeV        int32          `c:"kv_type_v"`
	LayerFirst     int32          `c:"layer_first"`
	LayerLast      int32          `c:"layer_last"`
	MaxTopK        int32          `c:"max_top_k"`
	Log            uintptr        `c:"log"`
	Progress       uintptr        `c:"progress"`
	User           uintptr        `c:"user"` // a key of the callback table, not a pointer
	HostCapBytes   uint64         `c:"host_cap_bytes"`
	KVPositions    int32          `c:"kv_positions"`

	AttentionWindow int32 `c:"attention_window"`
}

type cInfo struct {
	StructSize            uint32    `c:"struct_size"`
	Role                  uint32    `c:"role"`
	Arch                  [32]byte  `c:"arch"`
	Name                  [128]byte `c:"name"`
	Backend               [16]byte  `c:"backend"`
	Device                [128]byte `c:"device"`
	Layers                int32     `c:"n_layers"`
	LayerFirst            int32     `c:"layer_first"`
	LayerLast             int32     `c:"layer_last"`
	Hidden                int32     `c:"hidden"`
	Vocab                 int32     `c:"vocab"`
	MaxSequences          int32     `c:"max_sequences"`
	MaxContext            int32     `c:"max_context"`
	MaxTreeRows           int32     `c:"max_tree_rows"`
	MaxBatchRows          int32     `c:"max_batch_rows"`
	MaxTopK               int32     `c:"max_top_k"`
	KVTypeK               int32     `c:"kv_type_k"`
	KVTypeV               int32     `c:"kv_type_v"`
	BlockSize             int32     `c:"block_size"`
	MaskToken             int32     `c:"mask_token"`
	Captures              int32     `c:"n_capture"`
	CaptureLayers         [64]int32 `c:"capture_layers"`
	FeatureRaw            int32     `c:"feature_raw"`
	FeatureFused          int32     `c:"feature_fused"`
	Recurrent             int32     `c:"recurrent"`
	KVBytesPerToken       uint64    `c:"kv_bytes_per_token"`
	StateBytesPerSequence uint64    `c:"state_bytes_per_sequence"`
	Numerics              [192]byte `c:"numerics"`
	PromptRows            int32     `c:"prompt_rows"`
	KVPositions           int32     `c:"kv_positions"`
	KVPage                int32     `c:"kv_page"`
	FuseRaw               int32     `c:"fuse_raw"`
}

// cRow has the layout of engine.Row, which is handed over as it is.
type cRow struct {
	Token    int32  `c:"token"`
	Position int32  `c:"position"`
	Parent   int32  `c:"parent"`
	Want     uint32 `c:"want"`
	TopK     int32  `c:"top_k"`
	Score    int32  `c:"score"`
	Mask     int32  `c:"mask"`
}

type cGroup struct {
	Sequence     int32          `c:"sequence"`
	Rows         int32          `c:"n_rows"`
	Kind         uint32         `c:"kind"`
	Flags        uint32         `c:"flags"`
	Path         unsafe.Pointer `c:"path"`
	PathRows     int32          `c:"n_path"`
	KeptPosition int32          `c:"kept_position"`
	KeptRows     int32          `c:"n_kept"`
}

const groupCommit = 1 // TND_GROUP_COMMIT

type cStep struct {
	StructSize      uint32         `c:"struct_size"`
	Groups          int32          `c:"n_groups"`
	Rows            int32          `c:"n_rows"`
	Masks           int32          `c:"n_masks"`
	GroupData       unsafe.Pointer `c:"groups"`
	RowData         unsafe.Pointer `c:"rows"`
	MaskData        unsafe.Pointer `c:"masks"`
	HiddenIn        unsafe.Pointer `c:"hidden_in"`
	HiddenOut       unsafe.Pointer `c:"hidden_out"`
	HiddenEncoding  int32          `c:"hidden_encoding"`
	FeatureEncoding int32          `c:"feature_encoding"`
	Tokens          unsafe.Pointer `c:"tokens"`
	Logprobs        unsafe.Pointer `c:"logprobs"`
	Scores          unsafe.Pointer `c:"scores"`
	TopIDs          unsafe.Pointer `c:"top_ids"`
	TopLogprobs     unsafe.Pointer `c:"top_logprobs"`
	Logits          unsafe.Pointer `c:"logits"`
	Features        unsafe.Pointer `c:"features"`
	TopStride       int32          `c:"top_stride"`
}

type cSampler struct {
	StructSize        uint32         `c:"struct_size"`
	TopK              int32          `c:"top_k"`
	Temperature       float32        `c:"temperature"`
	TopP              float32        `c:"top_p"`
	MinP              float32        `c:"min_p"`
	RepetitionPenalty float32        `c:"repetition_penalty"`
	FrequencyPenalty  float32        `c:"frequency_penalty"`
	PresencePenalty   float32        `c:"presence_penalty"`
	PenaltyWindow     int32          `c:"penalty_window"`
	PromptTokens      int32          `c:"prompt_tokens"`
	Seed              uint64         `c:"seed"`
	Choice            int32          `c:"choice"`
	Biases            int32          `c:"n_bias"`
	BiasTokens        unsafe.Pointer `c:"bias_tokens"`
	BiasValues        unsafe.Pointer `c:"bias_values"`
}

type cFeatureRows struct {
	Sequence int32          `c:"sequence"`
	Position int32          `c:"position"`
	Rows     int32          `c:"n_rows"`
	Encoding int32          `c:"encoding"`
	Features unsafe.Pointer `c:"features"`
}

type cScorePrompt struct {
	IDs       unsafe.Pointer `c:"ids"`
	QueryRows unsafe.Pointer `c:"query_rows"`
	Scores    unsafe.Pointer `c:"scores"`
	Tokens    int32          `c:"n"`
	Queries   int32          `c:"n_query"`
}

type cDraftRequest struct {
	Sequence    int32   `c:"sequence"`
	Token       int32   `c:"token"`
	Position    int32   `c:"position"`
	Block       int32   `c:"block"`
	TopK        int32   `c:"top_k"`
	Temperature float32 `c:"temperature"`
}

type cStat struct {
	Name  [48]byte `c:"name"`
	Value uint64   `c:"value"`
}

// text reads a C string from an array.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// cString makes a terminated copy; nil for the empty string, which the header calls NULL.
func cString(s string) unsafe.Pointer {
	if s == "" {
		return nil
	}
	b := make([]byte, len(s)+1)
	copy(b, s)
	return unsafe.Pointer(&b[0])
}

// goString copies a C string of foreign memory, of at most maxTextBytes.
func goString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for n < maxTextBytes && *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

const maxTextBytes = 16 << 10
