package openai

import (
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// finishFunction is the finish_reason of a choice that calls one of the older functions.
const finishFunction = "function_call"

// parseFunctions reads functions and function_call, the older form of tools: at most one call, which the answer shows
// as the message's function_call. legacy reports whether the request has them.
func parseFunctions(o reqjson.Object, req *turn.Request) (legacy bool, err error) {
	set, err := turn.ParseFunctions(o)
	if err != nil {
		return false, err
	}
	if set.Len() > 0 {
		if o.Has("tools") {
			return false, reqerr.Unsupported("functions", "cannot be combined with tools")
		}
		req.Tools, req.Parallel, legacy = set, false, true
	}
	if !o.Has("function_call") {
		return legacy, nil
	}
	if raw, _, _ := o.Peek("function_call"); reqjson.Kind(raw) == 's' {
		choice, _, err := o.String("function_call")
		switch {
		case err != nil:
			return false, err
		case choice == "none":
			req.Choice = turn.ToolChoice{Mode: turn.ToolNone}
		case choice != "auto":
			return false, reqerr.InvalidValue("function_call", "must be none, auto or a function, got %q", choice)
		}
		return legacy, nil
	}
	choice, _, err := o.Object("function_call")
	if err != nil {
		return false, err
	}
	name, ok, err := choice.String("name")
	switch {
	case err != nil:
		return false, err
	case !ok:
		return false, reqerr.Missing("function_call.name")
	case set.Get(name) == nil:
		return false, reqerr.InvalidValue("function_call.name", "names none of the functions: %q", name)
	}
	req.Choice = turn.ToolChoice{Mode: turn.ToolNamed, Name: name}
	return legacy, nil
}

// finish is the finish_reason of a choice in the words of the request.
func finish(c *generate.Choice, legacy bool) string {
	if legacy && c.Finish == generate.FinishToolCalls {
		return finishFunction
	}
	return c.Finish
}
