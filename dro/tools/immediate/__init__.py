"""The programs that ask and answer, or send without a source: `lbmreq`, `lbmresp`, `lbmimsg`, `lbmireq`, `lbmtrreq`."""
