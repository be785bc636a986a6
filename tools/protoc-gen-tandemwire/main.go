// Protoc-gen-tandemwire writes the codec of services/tensorwire: functions that encode and decode messages into memory that
// is used again, for the messages that ask for it by the options of tandem/wire/v1. `make proto` runs it.
package main

import (
	"google.golang.org/protobuf/compiler/protogen"
)

func main() {
	protogen.Options{}.Run(generate)
}
