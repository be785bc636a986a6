package turn

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

// ignored are fields that change nothing by the rules of docs/spec/http-api.md §5.1: labels for records, and hints
// about time, price or place. All other fields are read, refused, or named in a warning.
var ignored = []string{
	"metadata", "user", "client_metadata", "safety_identifier", "user_profile_id", "workspace_id", "diagnostics",
	"anthropic_version", "anthropic_beta", "service_tier", "store", "cache_control", "prompt_cache_key",
	"prompt_cache_retention", "prompt_cache_options", "inference_geo", "prediction", "speed",
	"stream_options",
}

// ignoredInside are members of the elements of arrays, whatever the array, that change nothing by the same rules: hints
// for a cache of prompts and for the way in which arguments are streamed.
var ignoredInside = []string{"cache_control", "prompt_cache_breakpoint", "eager_input_streaming"}

// maxWarning bounds a warning in bytes: some servers in between take no longer headers.
const maxWarning = 1000

// byRule reports whether a field changes nothing by the rules of §5.1.
func byRule(path string) bool {
	top, _, _ := strings.Cut(path, ".")
	return slices.Contains(ignored, top) || strings.Contains(path, "[]") &&
		slices.Contains(ignoredInside, path[strings.LastIndexByte(path, '.')+1:])
}

// listed joins names after a word, as many as find room, and says how many more there are.
func listed(word string, names []string) string {
	length, shown := len(word), 0
	for shown < len(names) && length+len(names[shown]) < maxWarning {
		length += len(names[shown]) + 1
		shown++
	}
	out := word + ": " + strings.Join(names[:shown], ",")
	switch more := strconv.Itoa(len(names)-shown) + " more"; shown {
	case len(names):
		return out
	case 0:
		return out + more
	default:
		return out + " and " + more
	}
}

// FieldsIgnored is the warning about fields that nothing reads.
func FieldsIgnored(paths []string) string { return listed(fieldsIgnored, paths) }

const fieldsIgnored = "fields-ignored"

// warnings lists the parts of a request that were left out. The whole request must have been read.
func warnings(req *Request) []string {
	var out []string
	add := func(what string, list []string) {
		if len(list) > 0 {
			out = append(out, listed(what, list))
		}
	}
	add("tools-ignored", req.Skipped)
	if req.Choice.Hosted != "" {
		add("tool-choice-ignored", []string{req.Choice.Hosted})
	}
	add("tool-format-ignored", grammarTools(req.Tools))
	add("content-omitted", req.Omitted)
	add("items-ignored", req.SkippedItems)
	add(fieldsIgnored, slices.DeleteFunc(req.Body.Unread(), byRule))
	return out
}

// grammarTools are the custom tools whose text a grammar describes: the model sees them as free text.
func grammarTools(set *toolcall.Set) []string {
	var out []string
	for _, t := range set.All() {
		var format struct{ Type string }
		if t.Kind == toolcall.Custom && t.Format != nil && json.Unmarshal(t.Format, &format) == nil &&
			format.Type == "grammar" {
			out = append(out, t.Name)
		}
	}
	return out
}

// Warn sends the warnings about a request that is not run, for answers that only count or render.
func (s *Service) Warn(h http.Header, req *Request) {
	(&Prepared{Warnings: warnings(req)}).warn(h)
}
