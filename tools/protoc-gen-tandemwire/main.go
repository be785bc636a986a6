// Protoc-gen-tandemwire writes the codec of services/tensorwire: functions that encode and decode messages into memory that
// is used again, for the messages that ask for it by the options of tandem/wire/v1. `make proto` runs it, once for messages
// as protoc-gen-go makes them and once, with the parameter structs=PACKAGE, for those with the option go_struct.
package main

import (
	"flag"

	"google.golang.org/protobuf/compiler/protogen"
)

func main() {
	var flags flag.FlagSet
	structs := flags.String("structs", "", "write the codec of Go structs into the package of this name")
	protogen.Options{ParamFunc: flags.Set}.Run(func(plugin *protogen.Plugin) error { return generate(plugin, *structs) })
}
