package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// inModelFiles is what every file of a model says in plain text, near its begin.
const inModelFiles = "tokenizer.ggml.tokens"

// trust is the authority of a cluster.
type trust struct {
	t   *testing.T
	dir string
}

func newTrust(t *testing.T) *trust {
	t.Helper()
	a := &trust{t, filepath.Join(t.TempDir(), "authority")}
	certs(t, "init", "--authority", a.dir)
	return a
}

// join are the flags of a target that gets its certificate for a token.
func (a *trust) join() []string {
	a.t.Helper()
	return []string{"--certs", a.t.TempDir(), "--join-token", certs(a.t, "token", "target", "--authority", a.dir)}
}

// issue returns a folder with a certificate.
func (a *trust) issue(role, name string) string {
	a.t.Helper()
	dir := filepath.Join(a.t.TempDir(), "certs")
	certs(a.t, "issue", role, name, dir, "--authority", a.dir)
	return dir
}

// tensors asks the target at an address for its model in every way that it has, and returns the first answer that is
// not code.
func tensors(t *testing.T, address string, creds credentials.TransportCredentials, code codes.Code,
	dial ...grpc.DialOption) error {
	t.Helper()
	conn, err := grpc.NewClient(address, append(dial, grpc.WithTransportCredentials(creds))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	api, part := tandemv1.NewModelServiceClient(conn), &tandemv1.ModelPart{}
	calls := []func() error{
		func() error {
			_, err := api.GetModel(ctx, &tandemv1.GetModelRequest{})
			return err
		},
		func() error {
			stream, err := api.ListBlocks(ctx, &tandemv1.ListBlocksRequest{Part: part})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		func() error {
			stream, err := api.FetchBlocks(ctx, &tandemv1.FetchBlocksRequest{Part: part, Blocks: []int32{0}})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	}
	for _, call := range calls {
		if err := call(); status.Code(err) != code {
			return errors.Join(err, errors.New("want "+code.String()))
		}
	}
	return nil
}

// TestModelFromPeersWithCertificates: targets that join with tokens get a model, or the layers of a stage, from targets
// that have it, over connections of which nothing can be read on the way, and answer like these. The gateway names
// them, or a flag does. Whoever has no certificate of the cluster, or one of another role, gets nothing.
func TestModelFromPeersWithCertificates(t *testing.T) {
	if device != "" {
		t.Skip("one card is not several devices")
	}
	needPrograms(t)
	ip := ownAddress(t)
	at := freePorts(t, ip, 5)
	registry, serves, advertised, second, stage := at[0], at[1], at[2], at[3], at[4]
	ours, theirs := newTrust(t), newTrust(t)
	g := startGateway(t, registry, "--authority", ours.dir)
	worker := func(id string, args ...string) *cluster.Joined {
		t.Helper()
		j, err := cluster.Join(registry, id, append([]string{"--threads", "1"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end(t, id, j) })
		return j
	}
	first := worker("first", append(ours.join(), "--listen", serves, "--advertise", advertised)...)
	wire := record(t, advertised, serves)
	g.ready(t, 1)
	ask := func() string {
		t.Helper()
		reply, err := g.Do(t.Context(), client.Request{Messages: chat("What is DDTree?"), MaxTokens: 20})
		if err != nil {
			t.Fatal(err)
		}
		return reply.Text
	}
	want := ask()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	model, err := os.ReadFile(filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf"))
	if err != nil {
		t.Fatal(err)
	}

	folder := t.TempDir()
	fetched := worker("fetched", append(ours.join(), "--listen", second, "--model", filepath.Join(folder, "auto.gguf"),
		"--model-from", "auto")...)
	g.ready(t, 2)
	if wire.answered.len() < mostKept {
		t.Fatalf("the model of %d bytes went another way: %d bytes came this one", len(model), wire.answered.len())
	}
	if !bytes.Contains(model[:mostKept/2], []byte(inModelFiles)) || wire.contains(inModelFiles) {
		t.Error("the model can be read on the way")
	}
	// The one that has just got it hands it on.
	third := worker("third", append(ours.join(), "--listen", net.JoinHostPort(ip, "0"), "--model",
		filepath.Join(folder, "address.gguf"), "--model-from", second)...)
	g.ready(t, 3)
	for _, file := range []string{"auto.gguf", "address.gguf"} {
		if got, err := os.ReadFile(filepath.Join(folder, file)); err != nil || !bytes.Equal(got, model) {
			t.Errorf("%s is not the model: %d bytes, %v", file, len(got), err)
		}
	}

	strangers(t, serves, codes.Unauthenticated, ours, theirs)
	file := filepath.Join(folder, "stranger.gguf")
	stranger := worker("stranger", "--listen", net.JoinHostPort(ip, "0"), "--certs", theirs.issue("target", "stranger"),
		"--model", file, "--model-from", serves)
	eventually(t, "a worker with a certificate of another cluster is told why", func() bool {
		return strings.Contains(stranger.Log(), "unknown authority")
	})
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it has a file: %v", err)
	}

	same := func(whose string) {
		t.Helper()
		if got := ask(); got != want {
			t.Errorf("text %q of %s, want %q", got, whose, want)
		}
	}
	first.Close()
	g.ready(t, 2)
	same("those that were sent the model")
	worker("stage", append(ours.join(), "--stage", "2/2", "--target-layer-split", "5,3", "--listen", stage, "--model",
		filepath.Join(folder, "stage.gguf"), "--model-from", "auto")...)
	worker("head", append(ours.join(), "--listen", net.JoinHostPort(ip, "0"), "--target-stages", stage,
		"--target-layer-split", "5,3")...)
	g.ready(t, 3)
	if info, err := os.Stat(filepath.Join(folder, "stage.gguf")); err != nil || info.Size() > int64(len(model))*2/3 {
		t.Errorf("the file of the stage has not only its tensors: %v, %v", info, err)
	}
	fetched.Close()
	third.Close()
	g.ready(t, 1)
	same("a head and the stage that was sent its layers")
}

// strangers ask the target at an address for its model. In plain text only its own host talks to it at all, so the
// answer to that depends on where they are.
func strangers(t *testing.T, address string, plain codes.Code, ours, theirs *trust, dial ...grpc.DialOption) {
	t.Helper()
	with := func(dir string) credentials.TransportCredentials {
		cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
		if dir != "" {
			pair, err := identity.Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Certificates = []tls.Certificate{pair.Cert}
		}
		return credentials.NewTLS(cfg)
	}
	for name, c := range map[string]struct {
		creds credentials.TransportCredentials
		code  codes.Code
	}{
		"in plain text":               {insecure.NewCredentials(), plain},
		"without a certificate":       {with(""), codes.Unauthenticated},
		"with one of another cluster": {with(theirs.issue("target", "other")), codes.Unavailable},
		"with one of another role":    {with(ours.issue("draft", "draft")), codes.PermissionDenied},
		"with one of the cluster":     {with(ours.issue("target", "another")), codes.OK},
	} {
		if err := tensors(t, address, c.creds, c.code, dial...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
