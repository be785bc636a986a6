// Protoc-gen-tandemwire writes a codec: functions that encode and decode messages into memory that is used again, for
// the messages that have the options of tandem/wire/v1.
//
// `make proto` runs it twice: for messages as protoc-gen-go makes them, into services/tensorwire, and for those with
// the option go_struct. The second run has two parameters: structs=NAME is the package that the codec belongs to, and
// import=PATH the package whose name qualifies the structs.
package main

import (
	"flag"

	"google.golang.org/protobuf/compiler/protogen"
)

func main() {
	var flags flag.FlagSet
	var t target
	flags.StringVar(&t.name, "structs", "", "write the codec of Go structs into the package of this name")
	flags.StringVar(&t.imports, "import", "", "path of the package of structs whose names have its name before them")
	protogen.Options{ParamFunc: flags.Set}.Run(func(plugin *protogen.Plugin) error { return generate(plugin, t) })
}
