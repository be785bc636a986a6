module github.com/tandem-inference/tandem/bench

go 1.26.0

require (
	github.com/tandem-inference/tandem v0.0.0
	github.com/tandem-inference/tandem/tests v0.0.0
	go.opentelemetry.io/proto/otlp v1.11.0
	golang.org/x/sys v0.49.0
	google.golang.org/grpc v1.85.0
)

require (
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261019180522-ce908d29299b // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/tandem-inference/tandem/tests => ../tests

replace github.com/tandem-inference/tandem => ../
