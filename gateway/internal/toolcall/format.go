package toolcall

// Format is a way in which models write calls; the numbers are those of the table in docs/spec/http-api.md §10.3.
type Format uint8

const (
	_             Format = iota
	QwenXML              // F1
	BareXML              // F2
	Signature            // F3
	Hermes               // F4
	ToolCode             // F5
	BareJSON             // F6
	Gemma                // F7
	Laguna               // F8
	FunctionCalls        // F9
	DeepSeek             // F10
)

var formatNames = [...]string{"none", "qwen_xml", "bare_xml", "signature", "hermes", "tool_code", "bare_json", "gemma",
	"laguna", "function_calls", "deepseek"}

// String names the format for metrics.
func (f Format) String() string { return formatNames[f] }

// Family is the kind of model whose own format goes first.
type Family uint8

const (
	// Generic models use the formats that are always active.
	Generic Family = iota
	// QwenFamily writes F1 (or F4, the older ones).
	QwenFamily
	// GemmaFamily writes F7.
	GemmaFamily
	// LagunaFamily writes F8.
	LagunaFamily
)
