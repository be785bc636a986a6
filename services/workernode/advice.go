package workernode

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
)

// What engines say when a model does not fit. They speak of their options and in bytes.
var (
	bytesInAll  = regexp.MustCompile(`needs (\d+) bytes`)
	bytesCap    = regexp.MustCompile(`(?:of a cap of|the cap is) (\d+)`)
	bytesParts  = regexp.MustCompile(`\b(weights|kv|state|replay|scratch)(?:_bytes)? (\d+)`)
	contextFits = regexp.MustCompile(`max_context (\d+) would fit|at most (\d+) tokens fit`)
	poolFits    = regexp.MustCompile(`kv_positions (\d+) would fit`)
)

// partNames are the purposes of an engine's memory in words.
var partNames = map[string]string{
	"weights": "weights", "kv": "keys and values", "state": "recurrent state", "replay": "replay of trees",
	"scratch": "working memory",
}

// advise says for people what an engine said about memory: sizes with units, and which flags to turn. trained is the
// context that the model was trained for in tokens, 0 when it is not known. Errors about something else stay as
// they are.
func (f *Flags) advise(err error, trained int) error {
	if rpcerr.Code(err) != codes.ResourceExhausted {
		return err
	}
	text := err.Error()
	all, limit := bytesInAll.FindStringSubmatch(text), bytesCap.FindStringSubmatch(text)
	if all == nil || limit == nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the model does not fit: it needs %s, ", human(all[1]))
	if f.MemoryCap > 0 {
		fmt.Fprintf(&b, "--memory-cap allows %s", human(limit[1]))
	} else {
		fmt.Fprintf(&b, "%s are there", human(limit[1]))
	}
	var parts []string
	for _, m := range bytesParts.FindAllStringSubmatch(text, -1) {
		parts = append(parts, partNames[m[1]]+" "+human(m[2]))
	}
	if len(parts) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(parts, ", "))
	}
	fits := 0
	if m := contextFits.FindStringSubmatch(text); m != nil {
		fits, _ = strconv.Atoi(m[1] + m[2])
	}
	pool := poolFits.FindStringSubmatch(text)
	switch {
	case pool != nil:
		fmt.Fprintf(&b, ". --kv-positions %s fits", pool[1])
	case fits > 0 && trained > 0 && fits > trained:
		fmt.Fprintf(&b, ". --max-ctx %d fits, but the model was trained for %d: take that", fits, trained)
	case fits > 0:
		fmt.Fprintf(&b, ". --max-ctx %d fits", fits)
	default:
		b.WriteString(". No context fits: --lanes 1, smaller --cache-type-k and --cache-type-v, or a smaller model may")
	}
	return &unfit{error: err, text: b.String()}
}

// unfit is an error of an engine in words for people.
type unfit struct {
	error
	text string
}

func (u *unfit) Error() string { return u.text }
func (u *unfit) Unwrap() error { return u.error }

func human(bytes string) string {
	n, err := strconv.ParseInt(bytes, 10, 64)
	if err != nil {
		return bytes + " bytes"
	}
	return config.Size(n).Human()
}

// unopened is the error of an engine that never opened and will not at the next start either. Programs end with
// ExitUsage for it, so that supervisors do not start them again.
type unopened struct{ error }

func (u unopened) Unwrap() error { return u.error }

// lasting reports whether an engine that did not open for err will not open at the next start either: file and flags
// would have to change.
func lasting(err error) bool {
	switch rpcerr.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.Unimplemented, codes.ResourceExhausted:
		return true
	}
	return false
}
