package host_test

import (
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// failure is that of the answer to a request of a decode loop, whose stream was opened with err.
func failure[Q any, A interface{ GetFailure() *enginev1.Failure }](
	t *testing.T, stream interface {
		Send(*Q) error
		Recv() (A, error)
	}, err error, req *Q,
) error {
	t.Helper()
	if err == nil {
		err = stream.Send(req)
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return rpcerr.FromCode(codes.Code(r.GetFailure().GetCode()), r.GetFailure().GetMessage())
}

// TestWrongRole: a call of another role than the engine's is refused, by its service and its decode loop alike.
func TestWrongRole(t *testing.T) {
	for role, names := range map[enginev1.Role][]string{
		enginev1.Role_ROLE_TARGET: {"target", "Score", "Propose"},
		enginev1.Role_ROLE_DRAFT:  {"draft", "Score", "SetSampler", "Step"},
		enginev1.Role_ROLE_SCORE:  {"scorer", "CreateSequence", "SetSampler", "Propose", "Step"},
	} {
		conn, stop := serve(t, host.NewServer(enginefake.New(enginefake.Options{})))
		defer stop()
		opening, err := enginev1.NewEngineServiceClient(conn).Open(t.Context(),
			&enginev1.OpenRequest{Role: role, ModelPath: "m", TablesPath: "m", MaxSequences: 1, KvTypeK: -1, KvTypeV: -1})
		for err == nil {
			_, err = opening.Recv()
		}
		if err != io.EOF {
			t.Fatal(err)
		}
		target, draft := enginev1.NewTargetServiceClient(conn), enginev1.NewDraftServiceClient(conn)
		calls := map[string]func() error{
			"CreateSequence": func() error {
				_, err := enginev1.NewSequenceServiceClient(conn).CreateSequence(t.Context(), &enginev1.CreateSequenceRequest{})
				return err
			},
			"SetSampler": func() error {
				_, err := target.SetSampler(t.Context(), &enginev1.SetSamplerRequest{})
				return err
			},
			"Score": func() error {
				stream, err := enginev1.NewScoreServiceClient(conn).Score(t.Context(), &enginev1.ScoreRequest{})
				if err == nil {
					_, err = stream.Recv()
				}
				return err
			},
			"Step": func() error {
				stream, err := target.Step(t.Context())
				return failure(t, stream, err, &enginev1.StepRequest{Id: 1})
			},
			"Propose": func() error {
				stream, err := draft.Propose(t.Context())
				return failure(t, stream, err, &enginev1.ProposeRequest{Id: 1})
			},
		}
		for _, name := range names[1:] {
			if err := calls[name](); rpcerr.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), names[0]) {
				t.Errorf("%s of a %s: %v", name, names[0], err)
			}
		}
	}
	conn, stop := serve(t, host.NewServer(enginefake.New(enginefake.Options{})))
	defer stop()
	opening, err := enginev1.NewEngineServiceClient(conn).Open(t.Context(),
		&enginev1.OpenRequest{ModelPath: "m", MaxSequences: 1})
	for err == nil {
		_, err = opening.Recv()
	}
	if rpcerr.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "role") {
		t.Errorf("an engine of no role: %v", err)
	}
}
