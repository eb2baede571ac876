package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// EncodeSettings encodes settings of an object, which came from YAML.
func EncodeSettings(settings proto.Message) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(settings)
	if err != nil {
		panic("xdsgen: settings that do not encode: " + err.Error())
	}
	return string(b)
}

// FieldKey is the number of the key of an entry of a map, in the encoding of the map.
const FieldKey = 1 // of an entry of the map

// FieldValue is the number of the value of an entry of a map.
const FieldValue = 2

// AppendField appends the tag of a text, of bytes or of a message.
func AppendField(b []byte, number protowire.Number) []byte {
	return protowire.AppendTag(b, number, protowire.BytesType)
}
