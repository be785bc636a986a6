package grpcapi

import (
	"context"

	"github.com/tandem-inference/tandem/gateway/internal/bodybudget"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// limited receives a message for which there must be room before it is decoded.
type limited struct {
	msg   any
	share *bodybudget.Share
	// err is the refusal, after which msg is empty. The codec does not return it: gRPC would answer INTERNAL at once.
	err error
}

// codec is protobuf's, but for limited messages.
type codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	l, ok := v.(*limited)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	m, ok := l.msg.(proto.Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, l.msg)
	}
	// The bytes come first: looking at them takes a copy.
	if l.err = addAll(l.share, int64(data.Len())*bodybudget.PerByte); l.err != nil {
		return nil
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	cost := costOf(m.ProtoReflect().Descriptor(), whole.ReadOnlyData())
	if l.err = addAll(l.share, bodybudget.PerObject+cost); l.err != nil {
		return nil
	}
	return proto.Unmarshal(whole.ReadOnlyData(), m)
}

func addAll(share *bodybudget.Share, cost int64) error {
	if err := share.Add(cost); err != nil {
		return toRPC(err)
	}
	return nil
}

// costOf weighs the fields of an encoded message as those of its JSON would be, but for its bytes: what is made of both
// is the same. Bytes that are no message are refused by whoever decodes them.
func costOf(desc protoreflect.MessageDescriptor, data []byte) (cost int64) {
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return cost
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, wire, data); n < 0 {
			return cost
		}
		value := data[:n]
		data = data[n:]
		field := desc.Fields().ByNumber(number)
		if field == nil {
			cost += bodybudget.PerValue
			continue
		}
		if wire == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		cost += costOfField(field, wire, value)
	}
	return cost
}

func costOfField(field protoreflect.FieldDescriptor, wire protowire.Type, value []byte) int64 {
	switch {
	case field.IsMap():
		// Its key and value count as one.
		return costOf(field.Message(), value) - bodybudget.PerValue
	case field.Message() != nil:
		return bodybudget.PerValue + bodybudget.PerObject + costOf(field.Message(), value)
	case field.Kind() == protoreflect.StringKind:
		return bodybudget.PerValue + bodybudget.OfText(value)
	case field.Kind() == protoreflect.BytesKind || !field.IsList():
		return bodybudget.PerValue
	case wire != protowire.BytesType:
		return bodybudget.PerNumber
	}
	return bodybudget.PerNumber * packed(field.Kind(), value)
}

// packed is how many numbers a packed list has.
func packed(kind protoreflect.Kind, value []byte) (n int64) {
	switch kind {
	case protoreflect.FloatKind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return int64(len(value)) / 4
	case protoreflect.DoubleKind, protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return int64(len(value)) / 8
	default:
		for _, b := range value {
			if b < 0x80 {
				n++
			}
		}
		return n
	}
}

// Register adds the service to a server that has its ServerOptions.
func (s *Service) Register(g *grpc.Server) {
	desc := tandemv1.InferenceService_ServiceDesc
	desc.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range tandemv1.InferenceService_ServiceDesc.Methods {
		desc.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: s.limitedHandler(m.Handler)}
	}
	g.RegisterService(&desc, s)
}

// limitedHandler makes a unary method decode its request only where there is room. Interceptors come too late for that.
func (s *Service) limitedHandler(next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any,
		error) {
		share := s.bodies.Share()
		defer share.Release()
		l := &limited{share: share}
		return next(srv, ctx, func(m any) error {
			l.msg = m
			return decode(l)
		}, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if l.err != nil {
				h = func(context.Context, any) (any, error) { return nil, l.err }
			}
			return interceptor(ctx, req, info, h)
		})
	}
}
