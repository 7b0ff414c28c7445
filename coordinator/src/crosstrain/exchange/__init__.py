"""Models of other tools in and out, without those tools: Caffe's prototxt and caffemodel."""
