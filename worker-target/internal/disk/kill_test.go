package disk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"
)

const (
	// killedDir makes the test program a writer in this folder (TestKill).
	killedDir = "TANDEM_TEST_DISK_DIR"
	// kills is how often TestKill kills it.
	kills = "TANDEM_TEST_DISK_KILLS"
	// trunkLength is that of the conversation that the writer writes states of.
	trunkLength = 1500
)

func trunk() []int32 { return text(rand.New(rand.NewPCG(10, 1)), trunkLength) }

// fataler ends the writer; it is no test.
type fataler struct{ testing.TB }

func (fataler) Helper() {}
func (fataler) Fatal(args ...any) {
	fmt.Println(args...)
	os.Exit(1)
}

// writeUntilKilled writes states of the trunk and of branches of it, in a folder that is too small for all.
func writeUntilKilled(dir string) {
	t := fataler{}
	r := &rig{t: t, ctx: context.Background(), e: openFake(t, 0)}
	s := openStore(t, dir, 400<<10)
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	long := trunk()
	fmt.Println("begun")
	for {
		prompt := slices.Clone(long[:100+random.IntN(trunkLength-100)])
		if random.IntN(2) == 0 {
			prompt[len(prompt)-1]++
		}
		_ = r.write(s, "", prompt, rowsUpTo("one", 0, len(prompt)))
		st := s.Find(r.ctx, "", long, 0, all)
		if st == nil {
			continue
		}
		p, _, err := st.Load(r.ctx, r.e, 0, 0)
		if err != nil {
			t.Fatal("load: ", err)
		}
		r.same(p, long[:st.Length()])
		st.Close()
	}
}

// TestKill kills a process that writes, again and again: whenever that happens, the next one starts, finds what was
// written whole, nothing that was not, and keeps the budget. TANDEM_TEST_DISK_KILLS=100 kills it 100 times.
func TestKill(t *testing.T) {
	times, err := strconv.Atoi(os.Getenv(kills))
	if err != nil {
		times = 5
	}
	dir, r, random := t.TempDir(), newRig(t), rand.New(rand.NewPCG(11, 1))
	hits := 0
	for range times {
		c := exec.CommandContext(t.Context(), os.Args[0])
		c.Env = append(os.Environ(), killedDir+"="+dir)
		out, err := c.StdoutPipe()
		r.ok(err)
		r.ok(c.Start())
		begun := make([]byte, 5)
		if _, err := out.Read(begun); err != nil || string(begun) != "begun" {
			t.Fatalf("the writer says %q: %v", begun, err)
		}
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
		r.ok(c.Process.Kill())
		_ = c.Wait()
		if c.ProcessState.ExitCode() != -1 { // it was not the signal that ended it
			t.Fatalf("the writer failed: %v", c.ProcessState)
		}
		s := openStore(t, dir, 400<<10)
		r.ok(s.ready(r.ctx))
		kept(t, s, dir)
		long := slices.Concat(trunk(), text(random, 1))
		for n := trunkLength; n > 0; {
			got, _, err := r.load(s, "", long[:n], 0, 0)
			r.ok(err)
			if got == 0 {
				break
			}
			hits, n = hits+1, got-1
		}
		if s.Stats().Damaged != 0 {
			t.Errorf("%d files were damaged", s.Stats().Damaged)
		}
		s.Close()
	}
	if hits == 0 {
		t.Error("nothing was ever found")
	}
	t.Logf("%d kills, %d states found and compared", times, hits)
}
