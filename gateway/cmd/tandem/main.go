// Command tandem is the one command line of the project: it runs clusters, talks to them and looks into model files.
package main

import (
	"os"

	"github.com/tandem-inference/tandem/gateway/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
