// Command upgrade replaces every process of a cluster by that of another version, one after the other, while clients
// stream answers through a load balancer, and checks what they saw (see tests/faults): no request may fail, no text
// may change. The last line is PASS or FAIL; a JSON file holds all figures.
//
//	go run ./bench/upgrade [-from REVISION] [-out build/upgrade.json]
//
// Without -from both versions are the programs in bin, with two gateways on an etcd inside this program. With it the
// version before is built from that revision of this repository (minutes), and has one gateway.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/etcd"
	"github.com/tandem-inference/tandem/tests/faults"
)

func main() {
	var cfg faults.Upgrade
	cfg.Log = os.Stderr
	from := flag.String("from", "", "git revision of the version before; empty = the same programs")
	flag.StringVar(&cfg.From, "from-programs", "", "folder with the programs of -from, if they are built already")
	flag.BoolVar(&cfg.Drains, "drain", true, "workers end by tandem drain; without -from only")
	flag.Uint64Var(&cfg.Seed, "seed", 1, "of clients")
	flag.IntVar(&cfg.Clients, "clients", 3, "streams at a time")
	flag.IntVar(&cfg.Tokens, "tokens", 200, "tokens of an answer")
	flag.Float64Var(&cfg.Slack, "slack", 1, "factor of the limits of pauses, for busy machines")
	flag.StringVar(&cfg.Logs, "logs", "", "folder for the logs of all processes")
	out := flag.String("out", filepath.Join("build", "upgrade.json"), "file of results; the history is beside it")
	flag.Parse()
	report.Main(func(ctx context.Context) (bool, error) { return run(ctx, cfg, *from, *out) })
}

func run(ctx context.Context, cfg faults.Upgrade, from, out string) (_ bool, err error) {
	dir, err := os.MkdirTemp("", "tandem-upgrade-from-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	switch {
	case cfg.From != "":
		cfg.Drains = false
	case from != "":
		cfg.Drains = false
		undo, err := build(ctx, from, filepath.Join(dir, "tree"))
		defer undo()
		if err != nil {
			return false, fmt.Errorf("-from %s: %w", from, err)
		}
		cfg.From = filepath.Join(dir, "tree", "bin")
	default:
		store, err := etcd.Open(filepath.Join(dir, "etcd"), "127.0.0.1")
		if err != nil {
			return false, err
		}
		defer store.Stop()
		cfg.Store = "etcd://" + store.Endpoint + "/upgrade"
	}
	file, err := report.Beside(out, ".history")
	if err != nil {
		return false, err
	}
	defer file.Close()
	cfg.History = file
	fmt.Println("# Rolling upgrade\n\n" + report.Machine())
	r, err := faults.RunUpgrade(ctx, cfg)
	if err != nil {
		return false, err
	}
	table := &report.Table{Title: "Processes", Header: []string{"process", "ended after, s", "ready after, s",
		"longest pause, ms"}}
	for _, s := range r.Steps {
		table.Add(s.Name, s.Drain, s.Start, r.Faults["replace "+s.Name].Max)
	}
	table.Write(os.Stdout)
	fmt.Println()
	r.Print(os.Stdout)
	return report.Judge(out, struct {
		Machine string   `json:"machine"`
		Command []string `json:"command"`
		From    string   `json:"from"`
		*faults.Upgraded
	}{report.Machine(), os.Args[1:], from, r}, r.Problems(5))
}

// build builds the programs of a revision in a working tree of its own. undo removes the tree; it is never nil.
func build(ctx context.Context, revision, tree string) (undo func(), err error) {
	undo = func() {}
	root, err := cluster.Root()
	if err != nil {
		return undo, err
	}
	if err := call(ctx, root, "git", "worktree", "add", "--detach", tree, revision); err != nil {
		return undo, err
	}
	undo = func() { _ = call(context.WithoutCancel(ctx), root, "git", "worktree", "remove", "--force", tree) }
	return undo, call(ctx, tree, "make", "build-native", "build-go")
}

// call runs a command, whose output is that of this program's log.
func call(ctx context.Context, dir string, words ...string) error {
	c := exec.CommandContext(ctx, words[0], words[1:]...)
	c.Dir, c.Stdout, c.Stderr = dir, os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return errors.Join(fmt.Errorf("%s", strings.Join(words, " ")), err)
	}
	return nil
}
