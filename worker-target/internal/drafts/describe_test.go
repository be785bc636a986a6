package drafts

import (
	"math"
	"strings"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

var anyTarget = engine.Info{Layers: 8, Hidden: 256, Vocab: 1000, MaxTreeRows: 64}

func honest() *tandemv1.GetDraftResponse {
	return &tandemv1.GetDraftResponse{
		WorkerId: "draft-1", Ready: true, CaptureLayers: []int32{1, 3, 5}, BlockSize: 16, MaskToken: 7, FusedWidth: 256,
		FuseDigest: strings.Repeat("a", 64), DraftDigest: strings.Repeat("b", 64), MaxContext: 4096,
	}
}

// TestDescribeAnyBlock: a draft of any block size and context is refused with the name of a field, or used within what
// a step verifies and with room beside the block.
func TestDescribeAnyBlock(t *testing.T) {
	for _, rows := range []int{0, 2, 16, 64, 128} {
		target := anyTarget
		target.MaxTreeRows = rows
		for block := range 4097 {
			for _, maxContext := range []int{0, 1, 2, 3, 4, 5, block - 1, block, block + 1, 2 * block, 4096, 1 << 30} {
				d := honest()
				d.BlockSize, d.MaxContext = int32(block), int32(maxContext)
				info, err := describe(d, target)
				if err != nil {
					if block >= 2 && (maxContext == 0 || maxContext >= 4) ||
						!strings.Contains(err.Error(), "block_size") && !strings.Contains(err.Error(), "max_context") {
						t.Fatalf("block %d of a context of %d: %v", block, maxContext, err)
					}
					continue
				}
				most := auto.MaxBlock
				if rows > 0 {
					most = min(most, rows)
				}
				if info.block < 2 || info.block > min(block, most) || maxContext > 0 && info.maxContext-info.block < 1 {
					t.Fatalf("block %d of a context of %d: used as %+v", block, maxContext, info)
				}
				if block <= most && (maxContext == 0 || maxContext >= 2*block) && info.block != block {
					t.Fatalf("block %d of a context of %d fits, but %d is used", block, maxContext, info.block)
				}
			}
		}
	}
}

// TestDescribe: every field of a description that cannot be is refused by name.
func TestDescribe(t *testing.T) {
	if _, err := describe(honest(), anyTarget); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		field string
		spoil func(d *tandemv1.GetDraftResponse)
	}{
		{"worker_id", func(d *tandemv1.GetDraftResponse) { d.WorkerId = strings.Repeat("x", 257) }},
		{"draft_digest", func(d *tandemv1.GetDraftResponse) { d.DraftDigest = "" }},
		{"draft_digest", func(d *tandemv1.GetDraftResponse) { d.DraftDigest = strings.Repeat("x", 257) }},
		{"block_size", func(d *tandemv1.GetDraftResponse) { d.BlockSize = 1 }},
		{"block_size", func(d *tandemv1.GetDraftResponse) { d.BlockSize = math.MinInt32 }},
		{"max_context", func(d *tandemv1.GetDraftResponse) { d.MaxContext = -1 }},
		{"max_context", func(d *tandemv1.GetDraftResponse) { d.MaxContext = 3 }},
		{"max_context", func(d *tandemv1.GetDraftResponse) { d.MaxContext = math.MaxInt32 }},
		{"capture_layers", func(d *tandemv1.GetDraftResponse) { d.CaptureLayers = nil }},
		{"capture_layers", func(d *tandemv1.GetDraftResponse) { d.CaptureLayers = []int32{-1} }},
		{"capture_layers", func(d *tandemv1.GetDraftResponse) { d.CaptureLayers = []int32{8} }},
		{"capture_layers", func(d *tandemv1.GetDraftResponse) { d.CaptureLayers = []int32{3, 3} }},
		{"capture_layers", func(d *tandemv1.GetDraftResponse) { d.CaptureLayers = make([]int32, 100) }},
		{"mask_token", func(d *tandemv1.GetDraftResponse) { d.MaskToken = 1000 }},
		{"mask_token", func(d *tandemv1.GetDraftResponse) { d.MaskToken = -1 }},
		{"fused_width", func(d *tandemv1.GetDraftResponse) { d.FusedWidth = -1 }},
		{"fused_width", func(d *tandemv1.GetDraftResponse) { d.FusedWidth = 3*256 + 1 }},
	} {
		d := proto.Clone(honest()).(*tandemv1.GetDraftResponse)
		test.spoil(d)
		_, err := describe(d, anyTarget)
		if rpcerr.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), test.field+":") {
			t.Errorf("%s: %v", test.field, err)
		}
	}
}
