// Package rules holds the model's answers in the tests of client libraries, in all languages.
package rules

import (
	"strings"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// Greeting is the answer to everything that no other rule answers.
const Greeting = "Hello, Zürich \U0001F600!"

// Key is the API key of the gateway, Model the name of its model.
const (
	Key   = "sdk-test-key"
	Model = "tiny"
)

// All lists the rules. A prompt that ends with a tool's result is answered with it; the others go by words of
// the question.
func All() []cluster.Rule {
	return []cluster.Rule{
		{Prompt: `(?s)<tool_response>\n([^<]*)\n</tool_response><\|im_end\|>\n<\|im_start\|>assistant\n(?:<think>\n\n</think>\n\n)?$`, Emit: "The tool says: $1."},
		{Prompt: `(?s)<tool_response>\n([^<]*)\n</tool_response><\|im_end\|>\n<\|im_start\|>assistant\n<think>\n$`,
			Emit: "Now I know.\n</think>\n\nThe tool says: $1."},
		{Prompt: `Think, then ask for the weather`,
			Emit: "I need the tool.\n</think>\n\nLet me look.\n" + call("weather", "city", "Bern")},
		{Prompt: `Ask for the weather of Bern and Basel`,
			Emit: call("weather", "city", "Bern") + "\n" + call("weather", "city", "Basel")},
		{Prompt: `Ask for the weather of (\w+)`, Emit: call("weather", "city", "$1")},
		{Prompt: `Patch the file`, Emit: call("patch", "input", "*** Begin Patch\n+ \"quoted\"\n*** End Patch")},
		{Prompt: `Think about (\w+)`, Emit: "First, $1.\nThen more of $1.\n</think>\n\nAll about $1.", Accept: []int{3}},
		{Prompt: `Count for ever`, Emit: strings.Repeat("tick ", 4000), TokensPerSecond: 20},
		// The AI SDK asks Anthropic's models for structured output through a tool of this name.
		{Prompt: `(?s)"name": "json".*Answer in JSON`,
			Emit: "<tool_call>\n<function=json>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"},
		{Prompt: `Answer in JSON`, Emit: `{"city": "Bern", "days": 3}`},
		{Emit: Greeting},
	}
}

// Flags are those of the gateway that the tests count on. The context is long enough for efforts and shorter than the
// longest prompt of the tests.
func Flags() []string {
	return []string{"--api-key", Key, "--model-name", Model, "--max-queue", "4", "--max-ctx", "16384",
		"--image-policy", "reject"}
}

// call is a tool call in the model's own format.
func call(name, key, value string) string {
	return "<tool_call>\n<function=" + name + ">\n<parameter=" + key + ">\n" + value +
		"\n</parameter>\n</function>\n</tool_call>"
}
