package grammar

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/cputime"
)

// hostileSchemas are small, or as large as schemas may be, and would cost much if nothing bounded them.
func hostileSchemas() map[string]string {
	list := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strings.ReplaceAll(format, "#", fmt.Sprint(i)))
		}
		return b.String()
	}
	pattern := func(p string) string { return fmt.Sprintf(`{"type":"string","pattern":%q}`, p) }
	// levels of definitions, each of which names the one below it twice.
	doubling := func(n int, format string) string {
		defs := []string{`"d0":{"type":"object","properties":{"z":{"type":"integer"}}}`}
		for i := 1; i <= n; i++ {
			defs = append(defs, fmt.Sprintf(`"d%d":`, i)+strings.NewReplacer("@", fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i-1),
				"#", fmt.Sprint(i)).Replace(format))
		}
		return fmt.Sprintf(`{"$ref":"#/$defs/d%d","$defs":{%s}}`, n, strings.Join(defs, ","))
	}
	nested := func(n int, open, inner, shut string) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(shut, n)
	}
	return map[string]string{
		"nested plus":             pattern(`^(a+)+$`),
		"nested plus with length": `{"type":"string","pattern":"^((a+)+b?)+$","minLength":500,"maxLength":2000}`,
		"overlapping choice":      `{"type":"string","pattern":"^(a|aa)*b$","minLength":300,"maxLength":1000}`,
		"late choice":             pattern(`(a|b)*a(a|b){14}$`),
		"late choice with length": `{"type":"string","pattern":"(a|b)*a(a|b){14}$","maxLength":900}`,
		"nested counts":           pattern(`^(((a{1,9}){1,9}){1,9})$`),
		"many late choices": `{"allOf":[` + list(12, `{"pattern":"(a|b)*a(a|b){#}c"}`) +
			`],"type":"string","maxLength":400}`,
		"patterns of classes": `{"type":"string","maxLength":2000,"allOf":[` + list(30,
			`{"pattern":"[\\pL\\pN]{#,}x"}`) + `]}`,
		"negated patterns":    `{"type":"string","allOf":[` + list(20, `{"not":{"pattern":"(x|y)*x(x|y){#}z"}}`) + `]}`,
		"formats and lengths": `{"type":"string","format":"email","minLength":60,"maxLength":254,"pattern":"(a|b).*@.*(c|d).{3}$"}`,
		"refs to the power":   doubling(60, `{"type":"object","properties":{"l":@,"r":@},"allOf":[@,@]}`),
		"anyOf to the power":  doubling(60, `{"properties":{"p#":{"type":"null"}},"anyOf":[@,@]}`),
		"oneOf to the power":  doubling(60, `{"properties":{"p":{"oneOf":[@,{"allOf":[@,@]}]}},"required":["p"]}`),
		"recursion in allOf":  `{"$defs":{"n":{"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#/$defs/n"}},"l":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}}}},"allOf":[{"$ref":"#/$defs/n"},{"$ref":"#/$defs/n"}],"properties":{"c":{"items":{"not":{"required":["x"]}}}}}`,
		"enum of texts":       `{"enum":[` + list(40_000, `"v#"`) + `]}`,
		"enum of numbers":     `{"enum":[` + list(75_000, `#`) + `]}`,
		"enums in allOf": `{"allOf":[{"enum":[` + list(20_000,
			`"a#"`) + `]},{"enum":[` + list(20_000, `"a#"`) + `]}]}`,
		"not enum with pattern": `{"type":"string","pattern":"^[a-z0-9]*$","not":{"enum":[` + list(20_000, `"x#"`) + `]}}`,
		"branches": `{"allOf":[` + list(20,
			`{"anyOf":[{"required":["a#"]},{"required":["b#"]},{"properties":{"c#":{"type":"null"}}}]}`) + `]}`,
		"oneOf of many": `{"oneOf":[` + list(400,
			`{"properties":{"k":{"const":"v#"},"p#":{"type":"integer"}},"required":["k"]}`) + `]}`,
		"conditions": `{"allOf":[` + list(40,
			`{"if":{"properties":{"a#":{"const":1}}},"then":{"required":["b#"]},"else":{"required":["c#"]}}`) + `]}`,
		"overlapping keys": `{"patternProperties":{` + list(6,
			`"(a|b)*a(a|b){#}":{"minimum":#}`) + `},"properties":{` + list(40,
			`"ab#":true`) + `},"additionalProperties":{"type":"null"}}`,
		"names of keys":   `{"propertyNames":{"pattern":"^(x|y)*x(x|y){9}$","maxLength":200},"patternProperties":{"x.{7}$":{"type":"null"}},"minProperties":3}`,
		"long lengths":    `{"type":"string","minLength":60000,"maxLength":65000}`,
		"endless lengths": `{"type":"string","minLength":1000000000,"maxLength":2000000000}`,
		"long arrays":     nested(12, `{"minItems":1000,"maxItems":60000,"items":`, `{"type":"null"}`, `}`),
		"contains": `{"type":"array","uniqueItems":true,"items":{"enum":[` + list(300,
			`#`) + `]},"allOf":[` + list(4,
			`{"contains":{"enum":[#,1#,2#]},"minContains":2,"maxContains":9}`) + `],"maxItems":200}`,
		"properties": `{"properties":{` + list(3000,
			`"a long name of property #":{"type":["string","null"],"maxLength":#}`) + `}}`,
		"required properties": `{"properties":{` + list(3000, `"p#":{"type":"integer"}`) + `},"required":[` + list(3000,
			`"p#"`) + `],"minProperties":2999}`,
		"deep objects": nested(90, `{"type":"object","properties":{"a":`, `{}`, `}}`),
		"deep not":     nested(190, `{"not":`, `{"type":"string","pattern":"(a|b)*a(a|b){9}"}`, `}`),
		"deep anyOf":   nested(90, `{"anyOf":[{"type":"null"},`, `{"type":"integer"}`, `]}`),
		"multiples": `{"type":"number","allOf":[` + list(12,
			`{"multipleOf":1.0#1}`) + `],"minimum":-1000000000,"maximum":1000000000}`,
		"numbers apart": `{"type":"integer","multipleOf":997,"not":{"multipleOf":991},"minimum":123456789012,"maximum":987654321098765}`,
		"many heavy patterns": `{"properties":{` + list(400,
			`"p#":{"type":"string","maxLength":2000,"pattern":"(a|b)*a(a|b){8}c{1#}d"}`) + `}}`,
		"many refused patterns": `{"properties":{` + list(400,
			`"p#":{"type":"string","maxLength":9,"pattern":"(a|b)*a(a|b){14}c{#}"}`) + `}}`,
		"many long lengths": `{"properties":{` + list(400,
			`"p#":{"type":"string","maxLength":1#,"pattern":"^(a|b|(cd)*)*$","format":"hostname"}`) + `}}`,
		"many formats": `{"properties":{` + list(400,
			`"p#":{"type":"string","minLength":#,"maxLength":400,"format":"email"}`) + `}}`,
		"many multiples": `{"properties":{` + list(400,
			`"p#":{"type":"integer","multipleOf":1#,"minimum":#,"maximum":98765432109#}`) + `}}`,
		"many exclusive branches": `{"oneOf":[` + list(60, `{"type":"string","pattern":"^x{#}(a|b)*a(a|b){8}$"}`) + `]}`,
		"many patterns of keys": `{"properties":{` + list(300,
			`"p#":{"patternProperties":{"(a|b)*a(a|b){7}c{#}":true,"b(a|b){8}$":{"type":"null"}},"additionalProperties":{"type":"integer"}}`) + `}}`,
		"many long other keys": `{"properties":{` + list(200,
			`"p#":{"properties":{"a long name of a property that nobody has #":true},"additionalProperties":{"type":"integer"}}`) + `}}`,
		"classes in many places": `{"properties":{` + list(300,
			`"p#":{"type":"string","pattern":"^\\pL{#,}\\PL[^\\pN]$"}`) + `}}`,
		"a long regex": pattern(strings.Repeat(`(a?b*|c{2,9})`, 3000)),
		"a long regex, automaton": `{"type":"string","maxLength":99,"pattern":"` +
			strings.Repeat(`(a?b*|c{2,9})`, 600) + `"}`,
		"unevaluated": `{"unevaluatedProperties":false,"anyOf":[` + list(60,
			`{"properties":{"a#":true},"required":["b#"]}`) + `]}`,
	}
}

// TestHostileSchemas bounds what a schema may cost, whether it is refused in the end or not: processor time and memory
// from its text to the grammar and its first mask.
func TestHostileSchemas(t *testing.T) {
	mostTime, mostMemory := 800*time.Millisecond, uint64(512<<20)
	if testing.Short() { // also under the race detector, which is many times as slow
		mostTime, mostMemory = 16*mostTime, 2*mostMemory
	}
	v := testVocabulary("true", `":`, `",`, "aa", "ab", "abab")
	for name, schema := range hostileSchemas() {
		for _, open := range []bool{false, true} {
			var took time.Duration
			var memory uint64
			var err error
			// A busy or slow machine takes a multiple of the processor time for the same work: the least of a few tries
			// counts, and a try that takes too long is judged by what known work takes right after it.
			allowed := mostTime
			for range 4 {
				runtime.GC()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := cputime.Spent(t)
				err = toFirstMask(schema, open, v)
				took = cputime.Spent(t) - start
				runtime.ReadMemStats(&after)
				if memory = after.TotalAlloc - before.TotalAlloc; took <= mostTime {
					break
				}
				if allowed = time.Duration(float64(mostTime) * slowness(t)); took <= allowed {
					break
				}
			}
			t.Logf("%-24s open %-5v %6.0f ms %5d MB %v", name, open, float64(took.Microseconds())/1e3, memory>>20, err)
			if took > allowed || memory > mostMemory {
				t.Errorf("%s, open %v: %v and %d MB, at most %v and %d MB: %v", name, open, took, memory>>20,
					allowed, mostMemory>>20, err)
			}
		}
	}
}

// slowness is how many times as long this machine takes now for known work, maps and small texts as in a grammar's
// compilation, than an idle core at 2.6 GHz: from 1 to 4.
func slowness(t *testing.T) float64 {
	const idle = 40 * time.Millisecond
	start := cputime.Spent(t)
	known := map[string][]byte{}
	for i := range 60_000 {
		key := strconv.Itoa(i * 7919 % 1_000_003)
		known[key] = append([]byte(nil), key...)
	}
	runtime.KeepAlive(slices.Sorted(maps.Keys(known)))
	return min(max(float64(cputime.Spent(t)-start)/float64(idle), 1), 4)
}

// toFirstMask does what a request with a schema makes a worker do before its first token.
func toFirstMask(schema string, open bool, v *Vocabulary) error {
	w := NewWriter()
	o := SchemaOptions{Open: open}
	if open {
		o.Drop = func(*SchemaError) {}
	}
	rule, err := w.SchemaWith([]byte(schema), o)
	if err != nil {
		return err
	}
	w.Define("root", rule)
	s, err := Parse(w.Text())
	if err != nil {
		return err
	}
	g, err := s.Compile(v)
	if err != nil {
		return err
	}
	_, err = g.Mask(g.Start())
	return err
}
