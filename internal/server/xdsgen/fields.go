package xdsgen

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// encodeSettings encodes settings of an object, which came from YAML.
func encodeSettings(settings proto.Message) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(settings)
	if err != nil {
		panic("xdsgen: settings that do not encode: " + err.Error())
	}
	return string(b)
}

const fieldKey = 1 // of an entry of the map

const fieldValue = 2

// appendField appends the tag of a text, of bytes or of a message.
func appendField(b []byte, number protowire.Number) []byte {
	return protowire.AppendTag(b, number, protowire.BytesType)
}
