import os,time
from ssh.moves import *
def test_dbg(field):
    box, lab = field
    add(box, *all_of(lab))
    for n in (300,300):
      t=time.time()
      j=box.submit("-w","a,b,c","--array",f"0-{n-1}","--no-send","--no-bring","-o","/dev/null","--wrap","true")
      box.client.wait([j],timeout=100)
      print("rate", n/(time.time()-t))
    t=time.time()
    j=box.submit("-w","a,b,c","--array",f"0-{n-1}","--wrap","true")
    box.client.wait([j],timeout=100)
    print("rate carry", n/(time.time()-t))
    assert 0
