package relay

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// message is an encoded message of a stream.
type message struct{ data mem.BufferSlice }

// bytes returns the message in one piece, which is valid until the message is sent.
func (m *message) bytes() []byte {
	if len(m.data) != 1 {
		all := m.data.Materialize()
		m.data.Free()
		m.data = mem.BufferSlice{mem.SliceBuffer(all)}
	}
	return m.data[0].ReadOnlyData()
}

// codec passes messages without decoding them. Sending a message gives up its buffers.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("relay: %T is no message", v)
	}
	return m.data, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("relay: %T is no message", v)
	}
	data.Ref()
	m.data = data
	return nil
}
